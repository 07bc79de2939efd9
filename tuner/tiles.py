"""Tile sizes of the kernels for few rows, timed on the model's own matrices.

They change how fast a product is and not one bit of it: whatever the tile, a column's sum is made
by one SIMD-group in the same order.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TypeAlias

import mlx.core as mx

from mtplx.bench.measure import Progress, visiting_order
from mtplx.kernels.product import RowTile, Tiles, multiply
from mtplx.kernels.source import Maker, metal
from mtplx.models.llama import LlamaTarget
from mtplx.models.matrix import JoinedMatrix, Matrix
from mtplx.models.mlx_lm_target import MlxLmTarget
from mtplx.models.packed import PackedExperts, PackedLinear, packed_modules
from mtplx.models.packed_matrix import PackedMatrix
from mtplx.speculation import Target
from mtplx.tuner.search import MIN_EFFECT

CANDIDATES = tuple(RowTile(columns, groups) for columns in (1, 2, 4, 8) for groups in (1, 2, 4))
NUM_ROWS = (1, 2, 4, 8)  # of activations: plain decoding and drafts of some lengths
NUM_TURNS = 7
NUM_BYTES = 64 << 20  # of weights that are read in turn, so that they come from memory


@dataclass(frozen=True, slots=True)
class Arm:
    """One tile with one number of rows, over some matrices."""

    tile: RowTile
    num_rows: int
    run: Callable[[], list[mx.array]]


Seconds: TypeAlias = Callable[[Arm], float]
Step: TypeAlias = Callable[[], None]


def seconds(arm: Arm) -> float:
    """How long its products take, from asking for them to having them."""
    started_s = time.perf_counter()
    mx.eval(arm.run())
    return time.perf_counter() - started_s


def best_tiles(
    matrices: Mapping[str, Sequence[PackedMatrix]],
    progress: Progress,
    took: Seconds = seconds,
    maker: Maker = metal,
) -> dict[str, RowTile]:
    """By packing the tile that is fastest over all numbers of rows, where it is not the usual one.

    matrices: [N, K] each, by their packing. The usual tile stays unless another is faster by
    more than the least effect that counts in tuning. progress: called with the steps that are done,
    all of them, and the packing: before every kernel that is compiled, every turn of timing, and at
    the end.
    """
    found: dict[str, RowTile] = {}
    steps, total = count(), len(matrices) * (len(CANDIDATES) * len(NUM_ROWS) + NUM_TURNS)

    def step(name: str) -> None:
        progress(next(steps), total, name)

    for name, some in matrices.items():
        found[name] = _best(make_arms(some, maker), took, partial(step, name))
    for name in list(matrices)[-1:]:
        step(name)
    return {name: tile for name, tile in found.items() if tile != RowTile()}


def _best(arms: Sequence[Arm], took: Seconds, step: Step) -> RowTile:
    for arm in arms:
        step()
        took(arm)  # which compiles it
    times: dict[RowTile, dict[int, list[float]]] = {
        tile: {num_rows: [] for num_rows in NUM_ROWS} for tile in CANDIDATES
    }
    for turn in range(NUM_TURNS):
        step()
        for arm in visiting_order(arms, turn):
            times[arm.tile][arm.num_rows].append(took(arm))
    sums = {tile: sum(map(statistics.median, by.values())) for tile, by in times.items()}
    fastest = min(CANDIDATES, key=sums.__getitem__)
    return fastest if sums[fastest] * (1 + MIN_EFFECT) <= sums[RowTile()] else RowTile()


def make_arms(matrices: Sequence[PackedMatrix], maker: Maker) -> list[Arm]:
    """Every tile with every number of rows, with random activations of the matrices' dtype."""
    arms: list[Arm] = []
    for num_rows in NUM_ROWS:
        key = mx.random.key(num_rows)
        inputs = [mx.random.normal((num_rows, m.shape[1]), m.dtype, key=key) for m in matrices]
        mx.eval(inputs)
        arms += [
            Arm(tile, num_rows, _products(matrices, inputs, tile, maker)) for tile in CANDIDATES
        ]
    return arms


def _products(
    matrices: Sequence[PackedMatrix], inputs: Sequence[mx.array], tile: RowTile, maker: Maker
) -> Callable[[], list[mx.array]]:
    tiles, pairs = Tiles(few=tile), list(zip(inputs, matrices, strict=True))
    return lambda: [multiply(x, m.weight, tiles=tiles, maker=maker) for x, m in pairs]


def packed_matrices(target: Target) -> list[PackedMatrix]:
    """Those of a trunk that our kernels multiply, each once."""
    if isinstance(target, LlamaTarget):
        matrices = [target.embedding, target.lm_head, *_of_blocks(target)]
    elif isinstance(target, MlxLmTarget):
        # Of experts a token reads a few: they are left out.
        modules = [m for m in packed_modules(target.model) if not isinstance(m, PackedExperts)]
        matrices = [m.part.matrix if isinstance(m, PackedLinear) else m.matrix for m in modules]
    else:
        return []
    parts = [p for m in matrices for p in (m.parts if isinstance(m, JoinedMatrix) else [m])]
    packed = {id(part): part for part in parts if isinstance(part, PackedMatrix)}
    return list(packed.values())


def _of_blocks(target: LlamaTarget) -> list[Matrix]:
    return [m for b in target.blocks for m in (b.qkv, b.output, b.gate_up, b.down)]


def sample(matrices: Iterable[PackedMatrix]) -> dict[str, list[PackedMatrix]]:
    """Of a model's matrices by their packing as many as are to be read in turn, the largest first.

    Those of experts, of which a token reads a few, are left out.
    """
    chosen: dict[str, list[PackedMatrix]] = {}
    whole = [matrix for matrix in matrices if len(matrix.weight.shape) == 2]
    for matrix in sorted(whole, key=_num_bytes, reverse=True):
        some = chosen.setdefault(matrix.weight.packing.name, [])
        if sum(map(_num_bytes, some)) < NUM_BYTES:
            some.append(matrix)
    return chosen


def _num_bytes(matrix: PackedMatrix) -> int:
    return matrix.weight.codes.nbytes
