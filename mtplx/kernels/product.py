"""x W^T for packed W: a few rows, many rows, rows of one expert each; and rows of W themselves."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import mlx.core as mx

from mtplx.kernels.packing import PART, PackedWeight
from mtplx.kernels.source import Kernel, Maker, Template, header, metal

MOST_ROWS = 8  # that are applied to a weight while it is in registers
_THREADS = 128  # of a tile of many rows
_FEW = 8  # MLX hands arrays of fewer elements over in constant memory, where no plane is looked for

_PLANES = ("w", "scales", "biases")
_OPERANDS = (*_PLANES, "x", "multiplier", "bias")
_POINTERS = (
    "const Planes planes = {(const device uchar*)w, (const device uchar*)scales, "
    "(const device uchar*)biases, "
)
_COLUMN = (
    "(threadgroup_position_in_grid.x * simdgroups_per_threadgroup + "
    "simdgroup_index_in_threadgroup) * R"
)
_TILES = (
    "threadgroup T xs[BM * STRIDE]; threadgroup T ws[BN * STRIDE]; "
    "threadgroup float sums[BM * BN];\n"
)
_MATVEC = (
    f"{_POINTERS}uint(x_shape[1]), uint(w_shape[1])}};\n"
    "matvec<Weight, T, M, R, SCALED, BIASED>(planes, x, multiplier, bias, y, 0, "
    f"{_COLUMN}, w_shape[0], thread_index_in_simdgroup);"
)
_EXPERT_MATVEC = (
    f"{_POINTERS}uint(x_shape[1]), uint(w_shape[2])}};\n"
    "const uint pair = threadgroup_position_in_grid.y;\n"
    "matvec<Weight, T, 1, R, SCALED, BIASED>(planes, x + pair / SLOTS * planes.columns, "
    "multiplier, bias, y + pair * w_shape[1], experts[pair] * w_shape[1], "
    f"{_COLUMN}, w_shape[1], thread_index_in_simdgroup);"
)
_MATMUL = (
    f"{_POINTERS}uint(x_shape[1]), uint(w_shape[1])}};\n{_TILES}"
    "matmul<Weight, T, BM, BN, SCALED, BIASED>(planes, x, multiplier, bias, y, "
    "threadgroup_position_in_grid.y * BM, x_shape[0], 0, threadgroup_position_in_grid.x * BN, "
    "w_shape[0], xs, ws, sums, thread_index_in_threadgroup, simdgroup_index_in_threadgroup);"
)
_EXPERT_MATMUL = (
    f"{_POINTERS}uint(x_shape[1]), uint(w_shape[2])}};\n{_TILES}"
    "const ExpertRows at = expert_rows(starts, w_shape[0], threadgroup_position_in_grid.y, BM);\n"
    "if (at.end == 0) return;\n"
    "matmul<Weight, T, BM, BN, SCALED, BIASED>(planes, x, multiplier, bias, y, at.first, at.end, "
    "at.expert * w_shape[1], threadgroup_position_in_grid.x * BN, w_shape[1], xs, ws, sums, "
    "thread_index_in_threadgroup, simdgroup_index_in_threadgroup);"
)
_GATHER = (
    f"{_POINTERS}threads_per_grid.x * {PART}, uint(w_shape[1])}};\n"
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
    inputs = [*_planes(weight), x, *_of_rows(weight.multiplier, bias)]
    if len(x) <= MOST_ROWS:
        kernel = _kernel("matvec", weight.packing.files, _OPERANDS, _MATVEC, maker)
        sizes = [("M", len(x)), ("R", tiles.few.columns)]
        grid, group = _few_grid(width, 1, tiles.few)
    else:
        kernel = _kernel("matmul", weight.packing.files, _OPERANDS, _MATMUL, maker)
        sizes = [("BM", tiles.many.rows), ("BN", tiles.many.columns)]
        grid, group = _many_grid(width, -(-len(x) // tiles.many.rows), tiles.many)
    return kernel(
        inputs=inputs,
        template=[*_template(x.dtype, weight, bias), *sizes],
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
    of them. For few products: an expert that is named twice is read twice.
    """
    files = weight.packing.files
    inputs = (*_OPERANDS, "experts")
    kernel = _kernel("expert_matvec", files, inputs, _EXPERT_MATVEC, maker, ("matvec",))
    width, x = weight.shape[1], weight.spread(x)
    grid, group = _few_grid(width, len(experts), tiles.few)
    return kernel(
        inputs=[*_planes(weight), x, *_of_rows(weight.multiplier, None), experts],
        template=[
            *_template(x.dtype, weight, None),
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
    starts: mx.array,
    *,
    tiles: Tiles = DEFAULT_TILES,
    maker: Maker = metal,
) -> mx.array:
    """Rows of x [P, K], sorted by expert, times their expert of W [E, N, K]: [P, N].

    starts: [E + 1] uint32; rows starts[e] up to starts[e + 1] are those of expert e. For many
    rows: each expert's weights are read once for a tile of its rows.
    """
    files = weight.packing.files
    inputs = (*_OPERANDS, "starts")
    used = ("experts", "matmul")
    kernel = _kernel("expert_matmul", files, inputs, _EXPERT_MATMUL, maker, used)
    (experts, width), x = weight.shape[:2], weight.spread(x)
    # No more tiles can be needed; those that are not return at once.
    most = len(x) // tiles.many.rows + min(experts, len(x))
    grid, group = _many_grid(width, most, tiles.many)
    return kernel(
        inputs=[*_planes(weight), x, *_of_rows(weight.multiplier, None), starts],
        template=[
            *_template(x.dtype, weight, None),
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
    inputs = (*_PLANES, "ids", "multiplier")
    kernel = _kernel("gather", weight.packing.files, inputs, _GATHER, maker)
    columns = weight.places
    parts = columns // PART
    multiplier, _ = _of_rows(weight.multiplier, None)
    rows = kernel(
        inputs=[*_planes(weight), ids, multiplier],
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


def _few_grid(width: int, down: int, tile: RowTile) -> tuple[tuple[int, int, int], ...]:
    threads = 32 * tile.simdgroups
    across = -(-width // (tile.columns * tile.simdgroups))
    return (across * threads, down, 1), (threads, 1, 1)


def _many_grid(width: int, down: int, tile: BlockTile) -> tuple[tuple[int, int, int], ...]:
    return (-(-width // tile.columns) * _THREADS, down, 1), (_THREADS, 1, 1)


def _template(dtype: mx.Dtype, weight: PackedWeight, bias: mx.array | None) -> Template:
    return [
        ("T", dtype),
        ("SCALED", weight.multiplier is not None),
        ("BIASED", bias is not None),
        *weight.packing.template,
    ]


def _planes(weight: PackedWeight) -> list[mx.array]:
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


def _of_rows(multiplier: mx.array | None, bias: mx.array | None) -> Sequence[mx.array]:
    return [_nothing() if values is None else values for values in (multiplier, bias)]


@cache
def _kernel(
    name: str,
    packing: tuple[str, ...],
    inputs: tuple[str, ...],
    source: str,
    maker: Maker,
    functions: tuple[str, ...] = (),
) -> Kernel:
    text = header(("blocks", *packing, *(functions or (name,))))
    return maker(f"{name}_{packing[-1]}", inputs, ("y",), source, text)
