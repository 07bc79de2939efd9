"""x W^T for packed W: a few rows, many rows, rows of one expert each; and rows of W themselves."""

from dataclasses import dataclass

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
from mtplx.kernels.source import Maker, metal

MOST_ROWS = 8  # that are applied to a weight while it is in registers
_THREADS = 128  # of a tile of many rows

_TILES = (
    "threadgroup T xs[BM * STRIDE]; threadgroup T ws[BN * STRIDE]; "
    "threadgroup float sums[BM * BN];\n"
)
_MATVEC = (
    f"{POINTERS}uint(x_shape[1]), uint(w_shape[1])}};\n"
    "matvec<Weight, T, M, R, SCALED, BIASED>(planes, x, multiplier, bias, y, 0, "
    f"{COLUMN}, w_shape[0], thread_index_in_simdgroup);"
)
_EXPERT_MATVEC = (
    f"{POINTERS}uint(x_shape[1]), uint(w_shape[2])}};\n"
    "const uint pair = threadgroup_position_in_grid.y;\n"
    "if (experts[pair] >= w_shape[0]) return;\n"
    "matvec<Weight, T, 1, R, SCALED, BIASED>(planes, x + pair / SLOTS * planes.columns, "
    "multiplier, bias, y + pair * w_shape[1], experts[pair] * w_shape[1], "
    f"{COLUMN}, w_shape[1], thread_index_in_simdgroup);"
)
_MATMUL = (
    f"{POINTERS}uint(x_shape[1]), uint(w_shape[1])}};\n{_TILES}"
    "matmul<Weight, T, BM, BN, SCALED, BIASED>(planes, x, multiplier, bias, y, "
    "threadgroup_position_in_grid.y * BM, x_shape[0], 0, threadgroup_position_in_grid.x * BN, "
    "w_shape[0], xs, ws, sums, thread_index_in_threadgroup, simdgroup_index_in_threadgroup);"
)
_EXPERT_MATMUL = (
    f"{POINTERS}uint(x_shape[1]), uint(w_shape[2])}};\n{_TILES}"
    "const ExpertRows at = expert_rows(ranges, w_shape[0], threadgroup_position_in_grid.y, BM);\n"
    "if (at.end == 0) return;\n"
    "matmul<Weight, T, BM, BN, SCALED, BIASED>(planes, x, multiplier, bias, y, at.first, at.end, "
    "at.expert * w_shape[1], threadgroup_position_in_grid.x * BN, w_shape[1], xs, ws, sums, "
    "thread_index_in_threadgroup, simdgroup_index_in_threadgroup);"
)
_GATHER = (
    f"{POINTERS}threads_per_grid.x * {PART}, uint(w_shape[1])}};\n"
    "const uint row = thread_position_in_grid.y;\n"
    "gather<Weight, T, SCALED>(planes, ids[row], multiplier, y + row * planes.columns, "
    "thread_position_in_grid.x);"
)


@dataclass(frozen=True, slots=True)
class RowTile:
    """Of the kernels for few rows. columns: of y, per SIMD-group."""

    columns: int = 4
    simdgroups: int = 2


@dataclass(frozen=True, slots=True)
class BlockTile:
    """Of the kernels for many rows: multiples of 16."""

    rows: int = 32
    columns: int = 32


@dataclass(frozen=True, slots=True)
class Tiles:
    """Sizes that change speed and nothing else; the best ones differ between machines."""

    few: RowTile = RowTile()
    many: BlockTile = BlockTile()


DEFAULT_TILES = Tiles()


def multiply(
    x: mx.array,
    weight: PackedWeight,
    bias: mx.array | None = None,
    *,
    tiles: Tiles = DEFAULT_TILES,
    maker: Maker = metal,
) -> mx.array:
    """x [M, K] times W^T [K, N], plus bias [N] float32: [M, N] in x's dtype.

    x: float16, bfloat16 or float32. Sums are float32. Up to eight rows, the sums of a row are the
    same to the last bit whatever the number of rows, and the weights are read once.
    """
    width, x = weight.shape[0], weight.spread(x)
    inputs = [*planes_of(weight), x, *values_of_rows(weight.multiplier, bias)]
    if len(x) <= MOST_ROWS:
        kernel = kernel_of("matvec", weight.packing.files, OPERANDS, _MATVEC, maker)
        sizes = [("M", len(x)), ("R", tiles.few.columns)]
        grid, group = few_grid(width, 1, tiles.few)
    else:
        kernel = kernel_of("matmul", weight.packing.files, OPERANDS, _MATMUL, maker)
        sizes = [("BM", tiles.many.rows), ("BN", tiles.many.columns)]
        grid, group = _many_grid(width, -(-len(x) // tiles.many.rows), tiles.many)
    return kernel(
        inputs=inputs,
        template=[*template(x.dtype, weight, bias), *sizes],
        grid=grid,
        threadgroup=group,
        output_shapes=[(len(x), width)],
        output_dtypes=[x.dtype],
    )[0]


def multiply_by_experts(
    x: mx.array,
    weight: PackedWeight,
    experts: mx.array,
    *,
    slots: int = 1,
    tiles: Tiles = DEFAULT_TILES,
    maker: Maker = metal,
) -> mx.array:
    """Each row of x times one expert of W [E, N, K], or several: [P, N] in x's dtype.

    experts: [P] uint32, the expert of each product; x [P / slots, K] has one row for every `slots`
    of them. For few products: an expert that is named twice is read twice. A number that no expert
    has leaves its row of the result undefined.
    """
    files = weight.packing.files
    inputs = (*OPERANDS, "experts")
    kernel = kernel_of("expert_matvec", files, inputs, _EXPERT_MATVEC, maker, ("matvec",))
    width, x = weight.shape[1], weight.spread(x)
    grid, group = few_grid(width, len(experts), tiles.few)
    return kernel(
        inputs=[*planes_of(weight), x, *values_of_rows(weight.multiplier, None), experts],
        template=[
            *template(x.dtype, weight, None),
            ("R", tiles.few.columns),
            ("SLOTS", slots),
        ],
        grid=grid,
        threadgroup=group,
        output_shapes=[(len(experts), width)],
        output_dtypes=[x.dtype],
    )[0]


def multiply_by_sorted_experts(
    x: mx.array,
    weight: PackedWeight,
    ranges: mx.array,
    *,
    tiles: Tiles = DEFAULT_TILES,
    maker: Maker = metal,
) -> mx.array:
    """Rows of x [P, K], sorted by expert, times their expert of W [E, N, K]: [P, N].

    ranges: [E, 2] uint32; rows ranges[e, 0] up to ranges[e, 1] are those of expert e, and a row of
    none is undefined in the result. For many rows: each expert's weights are read once for a tile
    of its rows.
    """
    files = weight.packing.files
    inputs = (*OPERANDS, "ranges")
    used = ("experts", "matmul")
    kernel = kernel_of("expert_matmul", files, inputs, _EXPERT_MATMUL, maker, used)
    (experts, width), x = weight.shape[:2], weight.spread(x)
    # No more tiles can be needed; those that are not return at once.
    most = len(x) // tiles.many.rows + min(experts, len(x))
    grid, group = _many_grid(width, most, tiles.many)
    return kernel(
        inputs=[*planes_of(weight), x, *values_of_rows(weight.multiplier, None), ranges],
        template=[
            *template(x.dtype, weight, None),
            ("BM", tiles.many.rows),
            ("BN", tiles.many.columns),
        ],
        grid=grid,
        threadgroup=group,
        output_shapes=[(len(x), width)],
        output_dtypes=[x.dtype],
    )[0]


def embed(
    ids: mx.array, weight: PackedWeight, dtype: mx.Dtype, *, maker: Maker = metal
) -> mx.array:
    """Rows of the matrix: ids [M] uint32 -> [M, K] in `dtype`."""
    inputs = (*PLANES, "ids", "multiplier")
    kernel = kernel_of("gather", weight.packing.files, inputs, _GATHER, maker)
    columns = weight.places
    parts = columns // PART
    multiplier, _ = values_of_rows(weight.multiplier, None)
    rows = kernel(
        inputs=[*planes_of(weight), ids, multiplier],
        template=[
            ("T", dtype),
            ("SCALED", weight.multiplier is not None),
            *weight.packing.template,
        ],
        grid=(parts, len(ids), 1),
        threadgroup=(min(parts, 256), 1, 1),
        output_shapes=[(len(ids), columns)],
        output_dtypes=[dtype],
    )[0]
    return weight.gathered(rows)


def few_grid(width: int, down: int, tile: RowTile) -> tuple[tuple[int, int, int], ...]:
    """Grid and threadgroup of `down` products of few rows, each so many columns wide."""
    threads = 32 * tile.simdgroups
    across = -(-width // (tile.columns * tile.simdgroups))
    return (across * threads, down, 1), (threads, 1, 1)


def _many_grid(width: int, down: int, tile: BlockTile) -> tuple[tuple[int, int, int], ...]:
    return (-(-width // tile.columns) * _THREADS, down, 1), (_THREADS, 1, 1)
