"""How the matrices of an MLX checkpoint are packed: bits, group length and mode, by their shapes.

MLX packs a row of K weights into K * bits / 32 words of 32 bits, and every `group_size` of them
share a scale. Where K is known, as it is for a module of a model, shapes leave one answer and the
names in config.json do not matter. By shapes alone only bits * group_size is known, and the
configuration decides between what is left. The modes and their fields are those of MLX's
`mx.quantize`; the mx and nv modes are those of the OCP microscaling formats 1.0 and of NVFP4.
"""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from mtplx.errors import CheckpointError, UnsupportedTensorError

WORD_BITS = 32


@dataclass(frozen=True, slots=True)
class Packing:
    """How one matrix is packed. mode: "affine", "mxfp4", "mxfp8" or "nvfp4"."""

    bits: int
    group_size: int
    mode: str = "affine"

    def __str__(self) -> str:
        kind = "" if self.mode == "affine" else f" ({self.mode})"
        return f"{self.bits} bits in groups of {self.group_size}{kind}"


AFFINE = tuple(Packing(bits, size) for bits in (1, 2, 3, 4, 5, 6, 8) for size in (32, 64, 128))
WITH_BYTE_SCALES = (Packing(4, 32, "mxfp4"), Packing(8, 32, "mxfp8"), Packing(4, 16, "nvfp4"))


@dataclass(frozen=True, slots=True)
class Stated:
    """What a configuration says: for matrices in general, and for some by their path."""

    default: Packing | None = None
    by_path: Mapping[str, Packing] = field(default_factory=dict)

    def of(self, path: str) -> Packing | None:
        """What is said of one matrix; names that differ by a prefix alone are the same.

        None where nothing is said, or different things by names that could each be meant.
        """
        if path in self.by_path:
            return self.by_path[path]
        meant = {packing for key, packing in self.by_path.items() if _same_tail(key, path)}
        if len(meant) > 1:
            return None
        return meant.pop() if meant else self.default


@dataclass(frozen=True, slots=True)
class PackedShape:
    """The shapes of a packed matrix. width: K, the weights of a row; None where it is not known."""

    path: str
    num_words: int
    num_groups: int
    has_byte_scales: bool
    width: int | None = None


def stated_packings(config: Mapping[str, Any]) -> Stated:
    """What config.json says under `quantization`, or under `quantization_config` in that form."""
    for part in (config, config.get("text_config") or {}):
        for key in ("quantization", "quantization_config"):
            section = part.get(key)
            if isinstance(section, Mapping) and (packing := _packing(section)):
                entries = {name: _packing(entry) for name, entry in section.items()}
                return Stated(packing, {name: found for name, found in entries.items() if found})
    return Stated()


def packing_of(shape: PackedShape, stated: Stated) -> Packing:
    """The packing that the shapes leave, with the configuration's word where they leave several.

    Raises UnsupportedTensorError where no packing of MLX has such shapes, and CheckpointError
    where several have and the configuration chooses none of them.
    """
    fitting = _fitting(shape)
    if len(fitting) == 1:
        return fitting[0]
    rows = "rows" if shape.width is None else f"rows of {shape.width} weights"
    if not fitting:
        raise UnsupportedTensorError(
            f"{shape.path} is packed in {rows} of {shape.num_words} words and {shape.num_groups} "
            "scales, which is none of MLX's packings. Fetch the checkpoint again, or convert the "
            "original with `mtplx convert`."
        )
    said = stated.of(shape.path)
    if said in fitting:
        return said
    raise CheckpointError(
        f"{shape.path} may be {' or '.join(map(str, fitting))}, and config.json says "
        f"{said or 'nothing'}. State its bits and group_size under `quantization` there."
    )


def quantise_modules(
    model: Any, weights: Mapping[str, mx.array], config: Mapping[str, Any]
) -> None:
    """Make every module quantised whose scales are among `weights`, packed as its tensors are.

    model: an mlx.nn.Module whose modules are all dense yet. weights: names of its module tree,
    as its own `sanitize` gives them. Raises UnsupportedTensorError and CheckpointError.
    """
    import mlx.nn as nn

    stated = stated_packings(config)
    modules = dict(model.named_modules())
    chosen = {
        path: _choice(path, modules.get(path), weights, stated) for path in scaled_paths(weights)
    }
    if chosen:
        nn.quantize(model, class_predicate=lambda path, _: chosen.get(path, False))


def scaled_paths(names: Iterable[str]) -> list[str]:
    """The matrices among tensor names that have scales."""
    return [name.removesuffix(".scales") for name in names if name.endswith(".scales")]


def _choice(
    path: str, module: Any, weights: Mapping[str, mx.array], stated: Stated
) -> dict[str, Any]:
    """What `to_quantized` of a module is to be called with."""
    if not hasattr(module, "to_quantized"):
        raise UnsupportedTensorError(
            f"{path}.scales belongs to no matrix that can be packed in this model."
        )
    codes, scales = weights.get(f"{path}.weight"), weights[f"{path}.scales"]
    if codes is None or codes.dtype != mx.uint32 or codes.shape[:-1] != scales.shape[:-1]:
        raise UnsupportedTensorError(
            f"{path}.weight is {_told(codes)} beside scales of {_told(scales)}, and packed "
            "weights are uint32 words with as many rows."
        )
    has_byte_scales = scales.dtype == mx.uint8
    if has_byte_scales == (f"{path}.biases" in weights):
        lack = "has no biases" if not has_byte_scales else "has biases beside scales of 8 bits"
        raise UnsupportedTensorError(f"{path} {lack}. Fetch the checkpoint again.")
    shape = PackedShape(
        path, codes.shape[-1], scales.shape[-1], has_byte_scales, module.weight.shape[-1]
    )
    packing = packing_of(shape, stated)
    choice = {"bits": packing.bits, "group_size": packing.group_size, "mode": packing.mode}
    return choice | _global_scale(path, module, weights)


def _global_scale(path: str, module: Any, weights: Mapping[str, mx.array]) -> dict[str, bool]:
    """A scale for a whole matrix, which mlx-lm knows for some kinds of module alone."""
    if f"{path}.global_scale" not in weights:
        return {}
    if "global_scale" not in inspect.signature(module.to_quantized).parameters:
        raise UnsupportedTensorError(
            f"{path}.global_scale: a scale for a whole matrix is not known for "
            f"{type(module).__name__}. Convert the original with `mtplx convert`."
        )
    return {"global_scale": True}


def _fitting(shape: PackedShape) -> list[Packing]:
    """The packings with these counts of words and scales for each row."""
    table = WITH_BYTE_SCALES if shape.has_byte_scales else AFFINE
    row_bits = WORD_BITS * shape.num_words
    return [
        packing
        for packing in table
        if packing.bits * packing.group_size * shape.num_groups == row_bits
        and shape.width in (None, packing.group_size * shape.num_groups)
    ]


def _packing(section: object) -> Packing | None:
    if not isinstance(section, Mapping):
        return None
    bits, group_size = section.get("bits"), section.get("group_size")
    if not isinstance(bits, int) or not isinstance(group_size, int):
        return None
    return Packing(bits, group_size, str(section.get("mode", "affine")))


def _same_tail(one: str, other: str) -> bool:
    return f".{one}".endswith(f".{other}") or f".{other}".endswith(f".{one}")


def _told(array: mx.array | None) -> str:
    return "missing" if array is None else f"{array.dtype} {list(array.shape)}"
