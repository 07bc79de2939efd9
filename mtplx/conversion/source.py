"""The checkpoint that is converted, opened lazily: trunk and MTP head as branches of a plan."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtplx.conversion.plan import HEAD_FILE, Branch
from mtplx.errors import CheckpointError, UnsupportedTensorError
from mtplx.loading.native_folder import OpenedFolder, open_native_folder, opened_head
from mtplx.loading.tensor_list import safetensors_entries
from mtplx.models.mlx_lm_model import mismatch
from mtplx.models.native_head import BLOCK
from mtplx.models.quantisation import scaled_paths

HEAD_PREFIX = "mtp."  # before the names of the head's module tree


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint as it is converted.

    config: in the words that mlx-lm reads. no_head_reason: why there is no head, in one line; None
    where there is one.
    """

    folder: Path
    num_bytes: int
    config: Mapping[str, Any]
    trunk: Branch
    head: Branch | None
    family: str | None
    num_head_modules: int
    no_head_reason: str | None


def open_source(folder: Path) -> Source:
    """The checkpoint in a folder. Raises CheckpointError and its kinds, also for tensors of a head
    that no head can be made of."""
    num_bytes = sum(entry.num_bytes for entry in safetensors_entries(folder))
    opened = open_native_folder(folder)
    split = opened.split
    return Source(
        folder=folder,
        num_bytes=num_bytes,
        config=opened.config,
        trunk=_trunk(opened),
        head=_head(opened),
        family=None if split.family is None else split.family.name,
        num_head_modules=0 if split.head is None else split.head.num_modules,
        no_head_reason=split.no_head_reason,
    )


def _trunk(opened: OpenedFolder) -> Branch:
    model = opened.model
    branch = Branch(
        model=model,
        weights=opened.weights,
        prefix="",
        file_stem="model",
        # What mlx-lm's models say of their matrices: which to pack otherwise, which never to cast.
        quant_predicate=getattr(model, "quant_predicate", None),
        cast_predicate=getattr(model, "cast_predicate", None),
    )
    return _checked(branch, opened.name)


def _head(opened: OpenedFolder) -> Branch | None:
    parts = opened_head(opened)
    if parts is None:
        return None
    branch = Branch(
        model=parts.tree,
        weights=parts.weights,
        prefix=HEAD_PREFIX,
        file_stem=HEAD_FILE,
        quant_predicate=_as_in_trunk(opened.model, parts.tree),
    )
    return _checked(branch, f"the MTP head of {opened.name}")


def _as_in_trunk(model: Any, tree: Any) -> Callable[[str, Any], Any]:
    """What mlx-lm's model says of the matrix of a trunk layer that stands where one of a head does.

    Some models ask for the kind of the layer by its number, which a head's has not.
    """
    asked = getattr(model, "quant_predicate", None)
    if asked is None:
        return lambda path, module: True
    places = {id(module): path for path, module in model.named_modules()}
    head = dict(tree.named_modules())
    layers = [(places[id(layer)], dict(layer.named_modules())) for layer in model.layers]

    def predicate(path: str, module: Any) -> Any:
        block, _, inner = path.partition(f".{BLOCK}.")
        parent = inner.rpartition(".")[0]
        own = head.get(f"{block}.{BLOCK}.{parent}")
        for place, modules in reversed(layers):
            if own is not None and type(modules.get(parent)) is type(own):
                return asked(f"{place}.{inner}", module)
        return True

    return predicate


def _checked(branch: Branch, name: str) -> Branch:
    """Nothing missing, left over or packed already."""
    packed = scaled_paths(branch.weights)
    if packed:
        raise CheckpointError(
            f"{packed[0]} in {name} is packed already. Packing it again would lose more than it "
            "saves: convert the original checkpoint."
        )
    problem = mismatch(branch.model, branch.weights)
    if problem is not None:
        raise UnsupportedTensorError(f"{name}: {problem}. Fetch the original checkpoint again.")
    return branch
