"""The tuned profile of a loaded model: its key on this machine, and the file that fits it."""

import platform
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import mlx.core as mx

from mtplx.costs import Tuned
from mtplx.errors import MtplxError
from mtplx.kernels.product import RowTile
from mtplx.loading.fingerprint import fingerprint
from mtplx.machine import machine
from mtplx.models.llama import LlamaTarget
from mtplx.models.mlx_lm_target import MlxLmTarget
from mtplx.models.packed import held_arrays
from mtplx.profile import (
    Profile,
    differences,
    exact_pattern,
    model_mark,
    profiles_dir,
    why_not,
)
from mtplx.profile_file import read_profile
from mtplx.speculation import Target

if TYPE_CHECKING:
    from mtplx.loading.load import LoadedModel


@dataclass(frozen=True, slots=True)
class Found:
    """path: of the profile that fits. note: one line on it, or on why none is used, else None."""

    profile: Profile | None = None
    path: Path | None = None
    note: str | None = None


def with_profile(model: "LoadedModel") -> "LoadedModel":
    """The model with what its profile says, where there is one that fits."""
    found = profile_of(model)
    if found.profile is None:
        return replace(model, profile_note=found.note)
    profile = found.profile
    name = f"{profile.model} of {profile.date}"
    tuned = Tuned(profile.curve, profile.priors, name, profile.window)
    model.tiling.use({name: RowTile(*sizes) for name, sizes in profile.tiles.items()})
    return replace(model, depth_costs=tuned, profile_note=found.note)


def profile_of(model: "LoadedModel") -> Found:
    """The profile that fits the model on this machine; nothing that is wrong with one raises."""
    if model.head is None:
        return Found()
    try:
        folder = profiles_dir()
        mark = model_mark(fingerprint(model.path))
        candidates = sorted(folder.glob(f"*-{mark}*.toml"))
    except (MtplxError, OSError):  # no home, or a folder that cannot be listed: nothing was tuned
        return Found()
    if not candidates:
        return Found()
    return _fitting(folder, candidates, profile_key(model))


def _fitting(folder: Path, candidates: list[Path], key: Mapping[str, str | int | float]) -> Found:
    exact = sorted(folder.glob(exact_pattern(key)))
    unlike: list[tuple[list[str], Profile]] = []
    problem: str | None = None
    for path in [*exact, *(path for path in candidates if path not in exact)]:
        try:
            profile = read_profile(path)
        except MtplxError as error:
            problem = problem or f"A profile is not used. {error}"
            continue
        changes = differences(profile.key, key)
        if not changes:
            return Found(profile, path, _used(profile))
        unlike.append((changes, profile))
    if unlike and problem is None:
        changes, nearest = min(unlike, key=lambda pair: len(pair[0]))
        return Found(note=why_not(nearest, changes))
    return Found(note=problem)


def _used(profile: Profile) -> str:
    """What a profile that fits says, in one line."""
    depths = sorted({choice.depth for choice in profile.choices})
    told = f"{depths[0]} to {depths[-1]}" if len(depths) > 1 else str(depths[0])
    return f"Tuned on {profile.date}: depth {told} was best, chosen by what the text allows."


def profile_key(model: "LoadedModel") -> dict[str, str | int | float]:
    """What a profile of this model on this machine hangs on."""
    return {**machine_key(), **_model_key(model)}


def machine_key() -> dict[str, str | int | float]:
    """The part of the key that is the machine's and its software's."""
    at = machine()
    memory = at["memory"]
    assert isinstance(memory, int)
    return {
        "chip": str(at["chip"]),
        "device": str(at["device"]),
        "cores": int(str(at["cores"])),
        "memory": f"{memory / 2**30:.0f} GiB",
        "os": _system(),
        "mlx": str(at["mlx"]),
        "mtplx": str(at["mtplx"]),
        "blas": f"{at['blas']}, {at['threads']} threads" if at["threads"] else str(at["blas"]),
    }


def _system() -> str:
    """Name and version; of a version so much as changes how fast things are."""
    if sys.platform == "darwin":
        return f"macOS {'.'.join(platform.mac_ver()[0].split('.')[:2])}"
    return f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}"


def _model_key(model: "LoadedModel") -> dict[str, str]:
    head = model.head
    if head is None:
        mark = "none"
    elif head.path in (model.path, *model.path.parents) or model.path in head.path.parents:
        mark = "its own"
    else:
        mark = fingerprint(head.path)
    return {
        "model": fingerprint(model.path),
        "head": mark,
        "quantisation": _weights_type(model.target),
        "kv": _kv_type(model.target),
    }


def _weights_type(target: Target) -> str:
    """The types that the weights have in memory, the most bytes first; packed ones are uint32, or
    uint8 where they stay as they are on disk."""
    from mlx.utils import tree_flatten

    if isinstance(target, LlamaTarget):
        arrays = target.arrays()
    else:
        assert isinstance(target, MlxLmTarget)
        parameters = dict(tree_flatten(target.model.parameters()))
        arrays = [*parameters.values(), *held_arrays(target.model)]
    num_bytes: Counter[str] = Counter()
    for array in arrays:
        num_bytes[str(array.dtype).removeprefix("mlx.core.")] += array.nbytes
    return ", ".join(kind for kind, _ in num_bytes.most_common())


def _kv_type(target: Target) -> str:
    """The type of cached keys and values: known from the graph of a pass that is never run."""
    cache = target.make_cache()
    target.forward(mx.array([0]), cache)
    kinds = {str(array.dtype).removeprefix("mlx.core.") for layer in cache for array in layer.state}
    return ", ".join(sorted(kinds))
