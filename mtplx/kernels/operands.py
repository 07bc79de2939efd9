"""What kernels for packed weights are called with, and how each is made once."""

from collections.abc import Sequence
from functools import cache

import mlx.core as mx

from mtplx.kernels.packing import PackedWeight
from mtplx.kernels.source import Kernel, Maker, Template, header

_FEW = 8  # MLX hands arrays of fewer elements over in constant memory, where no plane is looked for

PLANES = ("w", "scales", "biases")
OPERANDS = (*PLANES, "x", "multiplier", "bias")
POINTERS = (
    "const Planes planes = {(const device uchar*)w, (const device uchar*)scales, "
    "(const device uchar*)biases, "
)
COLUMN = (
    "(threadgroup_position_in_grid.x * simdgroups_per_threadgroup + "
    "simdgroup_index_in_threadgroup) * R"
)


def template(dtype: mx.Dtype, weight: PackedWeight, bias: mx.array | None) -> Template:
    """What all products are made for."""
    return [
        ("T", dtype),
        ("SCALED", weight.multiplier is not None),
        ("BIASED", bias is not None),
        *weight.packing.template,
    ]


def planes_of(weight: PackedWeight) -> list[mx.array]:
    """The three planes; a format that has fewer names its codes again."""
    others = (weight.scales, weight.biases)
    return [
        weight.codes,
        *(weight.codes if plane is None else _in_device_memory(plane) for plane in others),
    ]


def _in_device_memory(plane: mx.array) -> mx.array:
    if plane.size >= _FEW:
        return plane
    return mx.concatenate([plane.reshape(-1), mx.zeros(_FEW - plane.size, plane.dtype)])


@cache
def _nothing() -> mx.array:
    return mx.zeros(8, mx.float32)


def values_of_rows(multiplier: mx.array | None, bias: mx.array | None) -> Sequence[mx.array]:
    """What each row of a matrix has; what there is not is never read."""
    return [_nothing() if values is None else values for values in (multiplier, bias)]


@cache
def kernel_of(
    name: str,
    packing: tuple[str, ...],
    inputs: tuple[str, ...],
    source: str,
    maker: Maker,
    functions: tuple[str, ...] = (),
) -> Kernel:
    """A kernel over `source`, with the functions of a format and of these files; made once."""
    text = header(("blocks", *packing, *(functions or (name,))))
    return maker(f"{name}_{packing[-1]}", inputs, ("y",), source, text)
