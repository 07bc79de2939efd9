"""Products of several rows with each of many packed matrices: W^T, or W itself."""

import mlx.core as mx

from mtplx.kernels.operands import (
    COLUMN,
    OPERANDS,
    PLANES,
    POINTERS,
    kernel_of,
    planes_of,
    template,
    values_of_rows,
)
from mtplx.kernels.packing import PART, PackedWeight
from mtplx.kernels.product import DEFAULT_TILES, MOST_ROWS, Tiles, few_grid
from mtplx.kernels.source import Maker, metal

_MOST_TURNED = 4  # rows that a thread has the sums of, sixteen each
_EACH = (
    f"{POINTERS}uint(x_shape[2]), uint(w_shape[2])}};\n"
    "const uint e = threadgroup_position_in_grid.y;\n"
    "matvec<Weight, T, M, R, SCALED, BIASED>(planes, x + e * M * planes.columns, multiplier, "
    "bias, y + e * M * w_shape[1], e * w_shape[1], "
    f"{COLUMN}, w_shape[1], thread_index_in_simdgroup);"
)
_TURNED = (
    f"{POINTERS}threads_per_grid.x * {PART}, uint(w_shape[2])}};\n"
    "const uint e = thread_position_in_grid.y;\n"
    "const uint count = x_shape[1];\n"
    "turned<Weight, T, M, SCALED>(planes, x + e * count * w_shape[1], multiplier, "
    "y + e * count * planes.columns, e * w_shape[1], w_shape[1], thread_position_in_grid.z * M, "
    "count, thread_position_in_grid.x);"
)


def multiply_each(
    x: mx.array,
    weight: PackedWeight,
    *,
    tiles: Tiles = DEFAULT_TILES,
    maker: Maker = metal,
) -> mx.array:
    """x [E, M, K] times W^T of W [E, N, K]: [E, M, N] in x's dtype.

    The sums of a row are the same to the last bit whatever M is. Up to eight rows, the weights are
    read once.
    """
    if x.shape[1] > MOST_ROWS:
        parts = mx.split(x, range(MOST_ROWS, x.shape[1], MOST_ROWS), axis=1)
        products = [multiply_each(part, weight, tiles=tiles, maker=maker) for part in parts]
        return mx.concatenate(products, axis=1)
    kernel = kernel_of("each_matvec", weight.packing.files, OPERANDS, _EACH, maker, ("matvec",))
    matrices, width = weight.shape[:2]
    grid, group = few_grid(width, matrices, tiles.few)
    return kernel(
        inputs=[
            *planes_of(weight),
            weight.spread(x),
            *values_of_rows(weight.multiplier, None),
        ],
        template=[
            *template(x.dtype, weight, None),
            ("M", x.shape[1]),
            ("R", tiles.few.columns),
        ],
        grid=grid,
        threadgroup=group,
        output_shapes=[(matrices, x.shape[1], width)],
        output_dtypes=[x.dtype],
    )[0]


def multiply_each_turned(x: mx.array, weight: PackedWeight, *, maker: Maker = metal) -> mx.array:
    """x [E, M, N] times W [E, N, K]: [E, M, K] in x's dtype.

    The sums of a row are the same to the last bit whatever M is. For few rows: the weights are read
    once for four of them.
    """
    inputs = (*PLANES, "x", "multiplier")
    kernel = kernel_of("turned", weight.packing.files, inputs, _TURNED, maker)
    matrices, num_rows, parts = *x.shape[:2], weight.places // PART
    most = min(num_rows, _MOST_TURNED)
    multiplier, _ = values_of_rows(weight.multiplier, None)
    product = kernel(
        inputs=[*planes_of(weight), x, multiplier],
        template=[
            ("T", x.dtype),
            ("SCALED", weight.multiplier is not None),
            ("M", most),
            *weight.packing.template,
        ],
        grid=(parts, matrices, -(-num_rows // most)),
        threadgroup=(min(parts, 32), 1, 1),
        output_shapes=[(matrices, num_rows, weight.places)],
        output_dtypes=[x.dtype],
    )[0]
    return weight.gathered(product)
