"""Comparing what was written with what it was written from.

A tensor that was not packed has to be the same bit for bit. A packed one may be off by what its
packing loses: rounding costs half a step, and MLX moves a group's scale so that its largest weight
is met exactly, which costs up to one step at the group's other end. Scale and bias are then stored
in the tensor's own dtype.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from mtplx.conversion.plan import PlannedFile, Unit, dense_array
from mtplx.errors import CheckpointError
from mtplx.models.quantisation import Packing

AT_ONCE = 1 << 18  # weights that are compared at a time, in float32
STEPS = 1.0
_ROUNDING = {mx.float32: 2**-23, mx.float16: 2**-10, mx.bfloat16: 2**-7}
_SMALLEST = {mx.float32: 2**-149, mx.float16: 2**-24, mx.bfloat16: 2**-133}


@dataclass(frozen=True, slots=True)
class Deviation:
    """How far packed matrices are from their sources.

    squared_error, squared_size: sums over the weights. worst: the largest error, as a share of
    what the packing may lose there.
    """

    num_matrices: int = 0
    num_bytes: int = 0
    squared_error: float = 0.0
    squared_size: float = 0.0
    worst: float = 0.0

    @property
    def relative(self) -> float:
        """The root of the mean squared error, relative to that of the weights."""
        return math.sqrt(self.squared_error / self.squared_size) if self.squared_size else 0.0

    def __add__(self, other: "Deviation") -> "Deviation":
        return Deviation(
            self.num_matrices + other.num_matrices,
            self.num_bytes + other.num_bytes,
            self.squared_error + other.squared_error,
            self.squared_size + other.squared_size,
            max(self.worst, other.worst),
        )


def verify_file(
    path: Path, file: PlannedFile, weights: dict[str, mx.array]
) -> dict[Packing | None, Deviation]:
    """Read a file back and compare each tensor with its source, one at a time.

    weights: the sources, lazy; those of this file are taken out. Gives what was found for each
    packing, None for tensors that were not packed. Raises CheckpointError naming a tensor that is
    not what it should be.
    """
    held: dict[str, mx.array] = mx.load(str(path))  # type: ignore[assignment]  # for this format
    wanted = {part.name for unit in file.units for part in unit.parts}
    if held.keys() != wanted:
        names = sorted(held.keys() ^ wanted)
        raise CheckpointError(f"{path} does not hold the tensors it should: {names[0]} differs.")
    found: dict[Packing | None, Deviation] = {}
    for unit in file.units:
        arrays = [held.pop(part.name) for part in unit.parts]
        deviation = _deviation(unit, arrays, dense_array(unit, weights.pop(unit.source)))
        if deviation.worst > 1 or math.isnan(deviation.worst):
            raise CheckpointError(
                f"{unit.path} in {path} is not what the source holds (off by {deviation.worst:.3g} "
                "times what its packing may lose). Remove the file and convert again."
            )
        found[unit.packing] = found.get(unit.packing, Deviation()) + deviation
    return found


def _deviation(unit: Unit, arrays: list[mx.array], source: mx.array) -> Deviation:
    if unit.packing is None:
        same = arrays[0].dtype == source.dtype and bool(
            mx.array_equal(arrays[0], source, equal_nan=source.dtype in _ROUNDING)
        )
        return Deviation(1, unit.num_bytes, worst=0.0 if same else math.inf)
    total = Deviation(1, unit.num_bytes)
    width = source.shape[-1]
    rows = max(1, AT_ONCE // width)
    flat = [array.reshape(-1, array.shape[-1]) for array in (source, *arrays)]
    mx.eval(flat)
    for start in range(0, flat[0].shape[0], rows):
        total += _packed(unit.packing, *(array[start : start + rows] for array in flat))
    return total


def _packed(
    packing: Packing, source: mx.array, codes: mx.array, scales: mx.array, biases: mx.array
) -> Deviation:
    """Of some rows [n, K] of a matrix."""
    exact, step, bias = (array.astype(mx.float32) for array in (source, scales, biases))
    held = mx.dequantize(codes, step, bias, packing.group_size, packing.bits, packing.mode)
    error = held - exact
    groups = mx.abs(error).reshape(*scales.shape, packing.group_size).max(axis=-1)
    return Deviation(
        squared_error=_number(mx.square(error).sum()),
        squared_size=_number(mx.square(exact).sum()),
        worst=_number((groups / _allowed(step, bias, scales.dtype, packing)).max()),
    )


def _number(scalar: mx.array) -> float:
    return float(scalar.item())  # type: ignore[arg-type]  # none is complex


def _allowed(scales: mx.array, biases: mx.array, dtype: mx.Dtype, packing: Packing) -> mx.array:
    """The largest error of each group that packing explains, [n, groups] float32.

    dtype: what scales and biases are stored in.
    """
    largest_code = 2**packing.bits - 1
    rounding = _ROUNDING[dtype] * (largest_code * mx.abs(scales) + mx.abs(biases))
    allowed: mx.array = STEPS * mx.abs(scales) + rounding + (largest_code + 1) * _SMALLEST[dtype]
    return allowed + 1e-7  # the smallest scale that MLX makes
