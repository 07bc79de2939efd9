"""Which tensors of a checkpoint are a matrix that is packed in a foreign manner, by their names."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import mlx.core as mx

from mtplx.errors import CheckpointError, UnsupportedTensorError
from mtplx.models.family import Tensors

SCALES = ("_scale", "_scale_2", "_global_scale", "_scale_inv", "_zero_point", "_shape")
# Experts of a layer in one tensor, as transformers names them.
_FUSED = re.compile(r"\.experts\.(gate_up|gate|up|down)_proj$")


@dataclass(frozen=True, slots=True)
class Packed:
    """One packed matrix. name: of the tensor that it becomes. codes: bytes [..., N, W] or words;
    beside: what else there is of it, by what the names end in. stored: the names of them all."""

    name: str
    codes: mx.array
    beside: Mapping[str, mx.array]
    stored: tuple[str, ...]

    @property
    def base(self) -> str:
        """Of the layer that it belongs to."""
        return self.name.removesuffix(".weight")

    def need(self, *endings: str) -> mx.array:
        """The first of these that is there. Raises CheckpointError where none is: expanded
        without, the matrix would be noise."""
        for ending in endings:
            if ending in self.beside:
                return self.beside[ending]
        raise CheckpointError(
            f"{self.base} is packed, and {self.name}{endings[0]} is not there. Fetch the "
            "checkpoint again."
        )

    def unknown(self, scale: mx.array) -> UnsupportedTensorError:
        """What to say where no packing has scales like this."""
        return UnsupportedTensorError(
            f"{self.base} is packed as {self.codes.dtype} {list(self.codes.shape)} with scales "
            f"{scale.dtype} {list(scale.shape)}, which is no packing that is known here."
        )


def packed_matrices(tensors: Tensors) -> Iterator[Packed]:
    """The matrices of a checkpoint that are packed in a foreign manner."""
    for stored, codes in tensors.items():
        if codes.ndim < 2 or not _is_packed(stored, codes, tensors):
            continue
        name = stored.removesuffix("_packed")
        beside = {e: tensors[f"{name}{e}"] for e in SCALES if f"{name}{e}" in tensors}
        yield Packed(name, codes, beside, (stored, *(f"{name}{e}" for e in beside)))


def _is_packed(name: str, codes: mx.array, tensors: Tensors) -> bool:
    if name.endswith(".weight_packed"):
        return True
    if codes.dtype != mx.uint8:
        return False
    # What has scales by this name, mlx-lm packs as its own.
    fused = _FUSED.search(name) is not None and f"{name}_weight_scale" not in tensors
    return fused or name.endswith(".weight")
