"""Tile sizes of the kernels for few rows, timed on the model's own matrices.

They change how fast a product is and not one bit of it: whatever the tile, a column's sum is made
by one SIMD-group in the same order.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import mlx.core as mx

from mtplx.bench.measure import visiting_order
from mtplx.kernels.packing import PackedWeight
from mtplx.kernels.product import RowTile, Tiles, multiply
from mtplx.kernels.source import Maker, metal
from mtplx.models.llama import LlamaTarget
from mtplx.models.matrix import JoinedMatrix, Matrix
from mtplx.models.mlx_lm_target import MlxLmTarget
from mtplx.models.packed import PackedLinear, PackedMatrix, packed_modules
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


def seconds(arm: Arm) -> float:
    """How long its products take, from asking for them to having them."""
    started_s = time.perf_counter()
    mx.eval(arm.run())
    return time.perf_counter() - started_s


def best_tiles(
    weights: Mapping[str, Sequence[PackedWeight]], took: Seconds = seconds, maker: Maker = metal
) -> dict[str, RowTile]:
    """By packing the tile that is fastest over all numbers of rows, where it is not the usual one.

    weights: matrices [N, K] by their packing. The usual tile stays unless another is faster by
    more than the least effect that counts in tuning.
    """
    found = {name: _best(make_arms(some, maker), took) for name, some in weights.items()}
    return {name: tile for name, tile in found.items() if tile != RowTile()}


def _best(arms: Sequence[Arm], took: Seconds) -> RowTile:
    for arm in arms:
        took(arm)  # which compiles it
    times: dict[RowTile, dict[int, list[float]]] = {
        tile: {num_rows: [] for num_rows in NUM_ROWS} for tile in CANDIDATES
    }
    for turn in range(NUM_TURNS):
        for arm in visiting_order(arms, turn):
            times[arm.tile][arm.num_rows].append(took(arm))
    sums = {tile: sum(map(statistics.median, by.values())) for tile, by in times.items()}
    fastest = min(CANDIDATES, key=sums.__getitem__)
    return fastest if sums[fastest] * (1 + MIN_EFFECT) <= sums[RowTile()] else RowTile()


def make_arms(weights: Sequence[PackedWeight], maker: Maker) -> list[Arm]:
    """Every tile with every number of rows, with random activations in float32."""
    arms: list[Arm] = []
    for num_rows in NUM_ROWS:
        inputs = {
            columns: mx.random.normal((num_rows, columns), key=mx.random.key(num_rows))
            for columns in {weight.shape[1] for weight in weights}
        }
        mx.eval(list(inputs.values()))
        arms += [
            Arm(tile, num_rows, _products(weights, inputs, tile, maker)) for tile in CANDIDATES
        ]
    return arms


def _products(
    weights: Sequence[PackedWeight], inputs: Mapping[int, mx.array], tile: RowTile, maker: Maker
) -> Callable[[], list[mx.array]]:
    tiles = Tiles(few=tile)
    return lambda: [
        multiply(inputs[weight.shape[1]], weight, tiles=tiles, maker=maker) for weight in weights
    ]


def packed_weights(target: Target) -> Iterator[PackedWeight]:
    """The weights of a trunk that our kernels multiply."""
    if isinstance(target, LlamaTarget):
        matrices = [target.embedding, target.lm_head, *_of_blocks(target)]
    elif isinstance(target, MlxLmTarget):
        modules = packed_modules(target.model)
        matrices = [m.part.matrix if isinstance(m, PackedLinear) else m.matrix for m in modules]
    else:
        return
    for matrix in matrices:
        parts = matrix.parts if isinstance(matrix, JoinedMatrix) else [matrix]
        yield from (part.weight for part in parts if isinstance(part, PackedMatrix))


def _of_blocks(target: LlamaTarget) -> list[Matrix]:
    return [m for b in target.blocks for m in (b.qkv, b.output, b.gate_up, b.down)]


def sample(weights: Iterable[PackedWeight]) -> dict[str, list[PackedWeight]]:
    """Of a model's matrices by their packing as many as are to be read in turn, the largest first.

    Those of experts, of which a token reads a few, are left out.
    """
    chosen: dict[str, list[PackedWeight]] = {}
    whole = [weight for weight in weights if len(weight.shape) == 2]
    for weight in sorted(whole, key=lambda weight: -weight.codes.nbytes):
        some = chosen.setdefault(weight.packing.name, [])
        if sum(other.codes.nbytes for other in some) < NUM_BYTES:
            some.append(weight)
    return chosen
