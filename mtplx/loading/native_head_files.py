"""Where in a checkpoint folder an MTP head lies, by the names of its tensors.

A head may be among the model's own files or in further ones of the same folder; the tensors that
are there decide, and what config.json says is only compared.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtplx.errors import CheckpointError, HeadError
from mtplx.loading.find_head import unusable_head
from mtplx.loading.norm_convention import CONVERTED_KEY, is_zero_centred
from mtplx.loading.stored_tensors import StoredFile, StoredFolder
from mtplx.models.families import family_of
from mtplx.models.family import Config, MtpFamily, Tensors, text_config, text_name
from mtplx.models.native_head import is_norm

IsHead = Callable[[str], bool]
CONVERTED_ROOT = "mtp.parts."  # what follows `mtp.` are names of the head's module tree


@dataclass(frozen=True, slots=True)
class StoredHead:
    """The tensors of a head, lazy.

    tensors: by their usual names, as stored. paths: the files that they are in.
    embedded: whether those files hold tensors of the trunk as well.
    zero_centred: whether its norms are stored as w and used as 1 + w.
    converted: by `mtplx convert`, whose names are those of the head's module tree.
    note: where config.json says something else, in one line.
    """

    family: MtpFamily
    tensors: Tensors
    paths: tuple[Path, ...]
    embedded: bool
    num_modules: int
    zero_centred: bool
    converted: bool
    note: str | None = None

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in self.tensors.values())

    def as_used(self) -> Tensors:
        """The tensors with norms that are multiplied by as they are."""
        if not self.zero_centred:
            return self.tensors
        return {
            name: array + 1 if is_norm(name, array) else array
            for name, array in self.tensors.items()
        }


@dataclass(frozen=True, slots=True)
class SplitFolder:
    """A checkpoint's tensors, the trunk's apart from the head's.

    family: None where none is known for the model type. no_head_reason: why there is no head.
    """

    family: MtpFamily | None
    config: dict[str, Any]
    trunk: Tensors
    head: StoredHead | None
    no_head_reason: str | None


def split_folder(folder: StoredFolder) -> SplitFolder:
    """The trunk's tensors and the head's. Raises CheckpointError where a part of the trunk is
    missing; what is wrong with a head is a reason to have none."""
    family = family_of(folder.config.get("model_type"))
    num_layers = text_config(folder.config).get("num_hidden_layers", 0)
    config = dict(folder.config)

    def is_head(name: str) -> bool:
        if family is None:
            return False
        usual = text_name(name)
        return usual.startswith(CONVERTED_ROOT) or family.is_head_tensor(usual, num_layers)

    trunk = {
        name: array
        for file in folder.files
        for name, array in file.tensors.items()
        if not is_head(name)
    }
    _check_present(folder, [name for name in folder.absent if not is_head(name)])
    if family is None:
        kind = folder.config.get("model_type")
        reason = f"no MTP head is known for the architecture {kind!r}, so it decodes plainly."
        return SplitFolder(None, config, trunk, None, reason)
    reason = _absence(folder, family, num_layers)
    _check_single(folder.path, trunk)
    try:
        head = _found(folder, family, trunk, is_head)
    except HeadError as error:
        head, reason = None, unusable_head(error)
    return SplitFolder(family, config, trunk, head, reason if head is None else None)


def _check_single(path: Path, trunk: Tensors) -> None:
    """Names that differ by a wrapping are one tensor to mlx-lm, and a published one and a converted
    one in its place make a trunk of both."""
    seen: dict[str, str] = {}
    for name in trunk:
        other = seen.setdefault(text_name(name), name)
        if other != name:
            raise CheckpointError(
                f"{path} holds {other} and {name}, which are one tensor under two names. Keep the "
                "files of one checkpoint only."
            )


def _check_present(folder: StoredFolder, missing: list[str]) -> None:
    if missing:
        raise CheckpointError(
            f"{folder.path / folder.absent[missing[0]]} is not there, and the index has "
            f"{missing[0]} in it. Fetch it again."
        )


def _found(
    folder: StoredFolder, family: MtpFamily, trunk: Tensors, is_head: IsHead
) -> StoredHead | None:
    held = _holders(folder.files, is_head)
    if not held:
        held = _holders(folder.beside, is_head)
    if not held:
        damaged = [file.damage for file in folder.beside if file.damage is not None]
        if damaged:
            raise HeadError(damaged[0])
        return None
    lost = [name for name in folder.absent if is_head(name)]
    if lost:
        raise HeadError(f"{folder.path / folder.absent[lost[0]]} is not there. Fetch it again.")
    converted = all(CONVERTED_KEY in file.metadata for file, _ in held)
    tensors: Tensors = {}
    for file, own in held:
        for name, array in own.items():
            usual = family.usual_name(text_name(name))
            if usual in tensors:
                raise HeadError(f"{file.path} holds {name} once more. Remove one of the files.")
            tensors[usual] = array
    num_modules = _count(family, tensors, text_config(folder.config), converted)
    return StoredHead(
        family=family,
        tensors=tensors,
        paths=tuple(file.path for file, _ in held),
        embedded=any(len(file.tensors) > len(own) for file, own in held),
        num_modules=num_modules,
        zero_centred=is_zero_centred(family, held, trunk),
        converted=converted,
        note=_note(family, text_config(folder.config), num_modules),
    )


def _holders(files: Iterable[StoredFile], is_head: IsHead) -> list[tuple[StoredFile, Tensors]]:
    """Files with tensors of a head, and these. Heads that were trained here are not meant."""
    held = []
    for file in files:
        own = {name: array for name, array in file.tensors.items() if is_head(name)}
        if own and not file.metadata.get("format", "").startswith("mtplx-head"):
            held.append((file, own))
    return held


def _count(family: MtpFamily, tensors: Tensors, config: Config, converted: bool) -> int:
    """How many modules the names speak of."""
    template = f"{CONVERTED_ROOT}{{i}}." if converted else family.block
    before, index, _ = template.replace("{layer}", "{i}").partition("{i}")
    if not index:
        return 1
    pattern = re.compile(re.escape(before) + r"(\d+)\.")
    found = {int(match[1]) for name in tensors if (match := pattern.match(name))}
    if not found:
        raise HeadError(f"{min(tensors)} is there, but no layer of the head. Fetch it again.")
    first = config.get("num_hidden_layers", 0) if "{layer}" in family.block and not converted else 0
    return max(found) - int(first) + 1


def promised(family: MtpFamily, config: Config) -> int | None:
    """How many modules the configuration speaks of; None where it does not."""
    counts = (config.get(field) for field in family.count_fields)
    return next((count for count in counts if isinstance(count, int)), None)


def _note(family: MtpFamily, config: Config, num_modules: int) -> str | None:
    said = promised(family, config)
    if said in (None, num_modules):
        return None
    return f"config.json speaks of {said} MTP modules; the weights have {num_modules}."


def _absence(folder: StoredFolder, family: MtpFamily, num_layers: int) -> str:
    said = promised(family, text_config(folder.config))
    names = f"{family.roots[0]}*".replace("{layer}", str(num_layers))
    lost = [name for name in folder.absent if family.is_head_tensor(text_name(name), num_layers)]
    if lost:
        return f"its MTP head is in {folder.absent[lost[0]]}, which is not there. Fetch it again."
    if said:
        return (
            f"config.json promises {said} MTP module{'s' if said > 1 else ''}, but no tensor is "
            f"named {names}: a conversion has dropped them. Take the original checkpoint, or "
            "convert it with `mtplx convert`, which keeps them."
        )
    return f"the checkpoint has no MTP head (no tensor named {names}), so it decodes plainly."
