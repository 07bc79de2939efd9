"""From rows of scores to a token, without arrays of the vocabulary's size in between.

Each function does what MLX's operations do in mtplx.sampling, mtplx.warps and mtplx.verification,
whose every step would read and write all rows. Rows are on their own: several give, bit for bit,
what each gives alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import mlx.core as mx

from mtplx.kernels.source import Kernel, Maker, Size, Template, header, metal

MOST_BEST = 2048  # of a row: a quarter of a chunk of its columns
SEGMENT = 256  # columns among which the second number of a draw chooses
_EACH, _THREADS = 16, 512  # columns that a thread holds, and threads of a chunk
_CHUNK = _EACH * _THREADS
_SIZES: Template = [("EACH", _EACH), ("THREADS", _THREADS)]
_SIMDGROUPS = 8  # that sum up a segment each, in a threadgroup

_PLACE = "thread_index_in_threadgroup, simdgroup_index_in_threadgroup, thread_index_in_simdgroup"
_ROW = (
    "const uint row = threadgroup_position_in_grid.y;\n"
    "const uint chunk = threadgroup_position_in_grid.x;\n"
    "const uint chunks = threadgroups_per_grid.x;\n"
    "const uint first = chunk * EACH * THREADS;\n"
)
_ROW_OF_SCORES = (
    f"{_ROW}const uint columns = uint(scores_shape[1]);\n"
    "const ulong start = ulong(row) * columns;\n"
)
_PARTS = (
    f"{_ROW_OF_SCORES}"
    "threadgroup uint peaks[THREADS / 32]; threadgroup float sums[THREADS / 32];\n"
    "chunk_part<EACH, THREADS>(scores + start, scale, parts + 2 * (row * chunks + chunk), first, "
    f"columns, peaks, sums, {_PLACE});"
)
_SOFTMAX = (
    f"{_ROW_OF_SCORES}"
    "const RowPart part = "
    "row_part(parts + 2 * row * chunks, scale, chunks, thread_index_in_simdgroup);\n"
    "chunk_probs<EACH, THREADS>(scores + start, part, scale, probs + start, first, columns, "
    "thread_index_in_threadgroup);\n"
    "if (chunk == 0 && thread_index_in_threadgroup == 0) finite[row] = isfinite(part.peak);"
)
_BEST = (
    f"{_ROW_OF_SCORES}threadgroup uint bins[NUM_BINS]; threadgroup uint found[2];\n"
    "threadgroup uint counts[EACH * THREADS / 32 + 1];\n"
    "const uint out = (row * chunks + chunk) * uint(count);\n"
    "chunk_best<EACH, THREADS, NAMED>(scores + start, NAMED ? ids + start : ids, best + out, "
    f"best_ids + out, first, columns, uint(count), bins, found, counts, {_PLACE});"
)
_SPREAD = (
    f"{_ROW}const uint count = uint(probs_shape[1]);\n"
    "chunk_spread<EACH, THREADS>(probs + row * count, ids + row * count, "
    "spread + ulong(row) * uint(columns), first, uint(columns), count, "
    "thread_index_in_threadgroup);"
)
_LEFT = (
    "const uint columns = uint(p_shape[1]);\n"
    "const uint segments = (columns + SEGMENT - 1) / SEGMENT;\n"
    "const auto left = left_of<PROPOSAL>(p, q, tokens, scales, row, uint(p_shape[0]), "
    "uint(q_shape[0]), columns);\n"
)
_SUMS = (
    "const uint row = uint(rows[threadgroup_position_in_grid.y]);\n"
    f"{_LEFT}"
    "const uint segment = threadgroup_position_in_grid.x * simdgroups_per_threadgroup + "
    "simdgroup_index_in_threadgroup;\n"
    "if (segment >= segments) return;\n"
    "segment_sums(left, sums + threadgroup_position_in_grid.y * 2 * segments, segments, segment, "
    "thread_index_in_simdgroup);"
)
_CHOOSE = (
    "const uint drawn = threadgroup_position_in_grid.x;\n"
    "const uint at = uint(picked[drawn]);\n"
    "const uint row = uint(rows[at]);\n"
    f"{_LEFT}"
    "choose(left, sums + at * 2 * segments, segments, uniforms[2 * row], uniforms[2 * row + 1], "
    "chosen + drawn, empty + drawn, thread_index_in_simdgroup);"
)
_OF_LEFT = ("p", "q", "tokens", "scales", "rows")


def kernels_here(maker: Maker | None = None) -> Maker | None:
    """Who runs the kernels: MLX on a Mac's GPU, whoever is given, or none, for portable code."""
    on_gpu = mx.default_device() == mx.Device(mx.gpu)
    return metal if maker is None and on_gpu and mx.metal.is_available() else maker


def softmax(scores: mx.array, scale: float, *, maker: Maker = metal) -> tuple[mx.array, mx.array]:
    """Probabilities [R, V] float32 in proportion to 2 ** (scale * scores), and which rows have any.

    scores: [R, V], any floating dtype. A row has none, [R] bool, and holds NaN, where its scores
    hold NaN or +inf or are all -inf. The scores are read twice.
    """
    parts = _parts(scores, scale, maker)
    num_rows, width = scores.shape
    grid, group = _over_chunks(num_rows, width)
    probs, finite = _softmax_kernel(maker)(
        inputs=[scores, parts, mx.array(scale, mx.float32)],
        template=_SIZES,
        grid=grid,
        threadgroup=group,
        output_shapes=[(num_rows, width), (num_rows,)],
        output_dtypes=[mx.float32, mx.bool_],
    )
    return probs, finite


def total(scores: mx.array, scale: float, *, maker: Maker = metal) -> mx.array:
    """The sums [R, 1] of 2 ** (scale * (scores - peak)) over each row. The scores are read once."""
    parts = _parts(scores, scale, maker)
    peaks, sums = parts[..., 0], parts[..., 1]
    factors = mx.power(2.0, (peaks - mx.max(peaks, axis=-1, keepdims=True)) * scale)
    parts = mx.where(peaks == -mx.inf, 0, sums * factors)
    return mx.cumsum(parts, axis=-1)[:, -1:]  # where `sum` adds one row otherwise than several


def best(scores: mx.array, count: int, *, maker: Maker = metal) -> tuple[mx.array, mx.array]:
    """The `count` largest scores of each row [R, count] and their columns, int32, ascending.

    scores: [R, V], any floating dtype, of which NaN is the largest. count: at most V and
    MOST_BEST. Of equal scores those of the lowest columns. The scores are read once: every chunk
    of a row gives its best, and these are the columns of the next, shorter row.
    """
    ids, named = _nothing(), False
    while True:
        num_rows, width = scores.shape
        num_chunks = -(-width // _CHUNK)
        grid, group = _over_chunks(num_rows, width)
        scores, ids = _best_kernel(maker)(
            inputs=[scores, ids, mx.array(count, mx.int32)],
            template=[*_SIZES, ("NAMED", named)],
            grid=grid,
            threadgroup=group,
            output_shapes=[(num_rows, num_chunks * count)] * 2,
            output_dtypes=[mx.float32, mx.int32],
        )
        named = True
        if num_chunks == 1:
            return scores, ids


def spread(probs: mx.array, ids: mx.array, width: int, *, maker: Maker = metal) -> mx.array:
    """Rows [R, width] float32 that are 0 but at columns ids [R, C] int32, ascending in a row."""
    num_rows = len(probs)
    grid, group = _over_chunks(num_rows, width)
    return _spread_kernel(maker)(
        inputs=[probs, ids, mx.array(width, mx.int32)],
        template=_SIZES,
        grid=grid,
        threadgroup=group,
        output_shapes=[(num_rows, width)],
        output_dtypes=[mx.float32],
    )[0]


def draw(probs: mx.array, uniforms: mx.array, *, maker: Maker = metal) -> mx.array:
    """Columns [R] int32, drawn in proportion to probs [R, S] float32 by uniforms [R, 2]."""
    rows = mx.arange(len(probs), dtype=mx.int32)
    left = Left(probs, rows, maker=maker)
    return left.draw(left.sums(), rows, uniforms)[0]


@dataclass(frozen=True, slots=True)
class Left:
    """What tokens are drawn from: the positive part of scale * p - q, or p where q is nothing.

    p: [K + 1, S] float32; nothing is drafted behind the last row.
    rows: [G] int32, the rows of p that are looked at.
    q: [J, S] float32 of the other rows; rows without one of their own have the last one's.
    tokens: [K] int32, where q is one-hot instead. Without both, all rows are p.
    scales: [K] float32, 1 where there are none.
    """

    p: mx.array
    rows: mx.array
    q: mx.array | None = None
    tokens: mx.array | None = None
    scales: mx.array | None = None
    maker: Maker = metal

    def sums(self) -> mx.array:
        """Sums [G, 2, S / 256] of the segments: of what is left, and of p. Each is read once."""
        num_segments, num_rows = -(-self.p.shape[1] // SEGMENT), len(self.rows)
        groups = -(-num_segments // _SIMDGROUPS)
        return _sums_kernel(self.maker)(
            inputs=[*self._inputs(), self.rows],
            template=self._template(),
            grid=(groups * 32 * _SIMDGROUPS, num_rows, 1),
            threadgroup=(32 * _SIMDGROUPS, 1, 1),
            output_shapes=[(num_rows, 2, num_segments)],
            output_dtypes=[mx.float32],
        )[0]

    def draw(
        self, sums: mx.array, picked: mx.array, uniforms: mx.array
    ) -> tuple[mx.array, mx.array]:
        """Columns [D] int32, and which were drawn from p since nothing was left, [D] int32.

        picked: [D] int32, the entries of `rows`. uniforms: [K + 1, 2] float32. A column without
        mass is never drawn.
        """
        num_drawn = len(picked)
        chosen, empty = _choose_kernel(self.maker)(
            inputs=[*self._inputs(), self.rows, sums, picked, uniforms],
            template=self._template(),
            grid=(32 * num_drawn, 1, 1),
            threadgroup=(32, 1, 1),
            output_shapes=[(num_drawn,), (num_drawn,)],
            output_dtypes=[mx.int32, mx.int32],
        )
        return chosen, empty

    def _inputs(self) -> list[mx.array]:
        return [
            self.p,
            self.p if self.q is None else self.q,
            _nothing() if self.tokens is None else self.tokens,
            mx.ones(len(self.p)) if self.scales is None else self.scales,
        ]

    def _template(self) -> Template:
        # NOTHING, EACH_COLUMN, ONE_TOKEN
        return [("PROPOSAL", 1 if self.q is not None else 0 if self.tokens is None else 2)]


def _parts(scores: mx.array, scale: float, maker: Maker) -> mx.array:
    """Peak and sum of every chunk, [R, chunks, 2]."""
    grid, group = _over_chunks(*scores.shape)
    return _parts_kernel(maker)(
        inputs=[scores, mx.array(scale, mx.float32)],
        template=_SIZES,
        grid=grid,
        threadgroup=group,
        output_shapes=[(len(scores), grid[0] // _THREADS, 2)],
        output_dtypes=[mx.float32],
    )[0]


def _over_chunks(num_rows: int, width: int) -> tuple[Size, Size]:
    return (-(-width // _CHUNK) * _THREADS, num_rows, 1), (_THREADS, 1, 1)


def _nothing() -> mx.array:
    return mx.zeros(8, mx.int32)


@cache
def _parts_kernel(maker: Maker) -> Kernel:
    return _made("softmax", "parts", ("scores", "scale"), ("parts",), _PARTS, maker)


@cache
def _softmax_kernel(maker: Maker) -> Kernel:
    inputs = ("scores", "parts", "scale")
    return _made("softmax", "softmax", inputs, ("probs", "finite"), _SOFTMAX, maker)


@cache
def _best_kernel(maker: Maker) -> Kernel:
    return _made("best", "best", ("scores", "ids", "count"), ("best", "best_ids"), _BEST, maker)


@cache
def _spread_kernel(maker: Maker) -> Kernel:
    return _made("spread", "spread", ("probs", "ids", "columns"), ("spread",), _SPREAD, maker)


@cache
def _sums_kernel(maker: Maker) -> Kernel:
    return _made("draw", "segment_sums", _OF_LEFT, ("sums",), _SUMS, maker)


@cache
def _choose_kernel(maker: Maker) -> Kernel:
    inputs = (*_OF_LEFT, "sums", "picked", "uniforms")
    return _made("draw", "choose", inputs, ("chosen", "empty"), _CHOOSE, maker)


def _made(
    file: str,
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    source: str,
    maker: Maker,
) -> Kernel:
    text = header(("sampler_keys", f"sampler_{file}"))
    return maker(f"sampler_{name}", inputs, outputs, source, text)
