"""Tile sizes: the fastest is taken, where it is clearly faster than the usual one."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest

from mtplx.kernels.packing import gguf_weight
from mtplx.kernels.product import RowTile
from mtplx.kernels.tiling import Tiling
from mtplx.loading.gguf_file import open_gguf
from mtplx.loading.gguf_model import gguf_model
from mtplx.models.llama import LlamaTarget
from mtplx.models.packed_matrix import PackedMatrix
from mtplx.tuner.conditions import Conditions
from mtplx.tuner.record import make_profile
from mtplx.tuner.tiles import (
    CANDIDATES,
    NUM_ROWS,
    NUM_TURNS,
    Arm,
    best_tiles,
    make_arms,
    packed_matrices,
    sample,
)
from mtplx.tuner.trial import TileStep, Trial
from tests.foreign import write_llama
from tests.kernels.hosts import fast
from tests.kernels.platforms import needs_linux
from tests.tiny import DIMS, tiny_target
from tests.tuner.profiles import KEY
from tests.tuner.scripted import RATES, TILE_STEPS, ScriptedBench, plan, run

USUAL, OTHER = RowTile(), RowTile(8, 1)


def matrix(name: str, rows: int = 6, columns: int = 64) -> PackedMatrix:
    block = {"Q4_0": 18, "Q8_0": 34}[name]
    codes = mx.random.randint(0, 60, (rows, columns // 32 * block), mx.uint8, key=mx.random.key(1))
    return PackedMatrix(gguf_weight(name, codes, columns))


def chosen(seconds: Callable[[Arm], float]) -> dict[str, RowTile]:
    """By a clock that runs nothing."""
    return best_tiles({"Q4_0": [matrix("Q4_0")]}, lambda *told: None, seconds)


def test_the_fastest_tile_is_taken() -> None:
    """Over all numbers of rows together."""
    assert chosen(lambda arm: 0.8 if arm.tile == OTHER else 1.0) == {"Q4_0": OTHER}
    slow_at_eight = chosen(
        lambda arm: (3.0 if arm.num_rows == 8 else 0.8) if arm.tile == OTHER else 1.0
    )
    assert slow_at_eight == {}


@pytest.mark.parametrize("share", [1.0, 0.98])
def test_the_usual_tile_stays_where_another_is_hardly_faster(share: float) -> None:
    assert chosen(lambda arm: share if arm.tile == OTHER else 1.0) == {}


def test_noise_changes_nothing() -> None:
    """Medians of several turns, of one that is slow to begin with."""
    numbers, seen = random.Random(3), set[tuple[RowTile, int]]()

    def noisy(arm: Arm) -> float:
        first = (arm.tile, arm.num_rows) not in seen
        seen.add((arm.tile, arm.num_rows))
        return (50.0 if first else 1.0) * (1 + 0.02 * numbers.gauss(0, 1))

    assert chosen(noisy) == {}


def test_every_step_is_told_before_it_is_made() -> None:
    """A step is a kernel that is compiled, or a turn of timing; the packing is named."""
    made: list[tuple[RowTile, int]] = []
    told: list[tuple[int, int, str, int]] = []

    def progress(done: int, total: int, packing: str) -> None:
        told.append((done, total, packing, len(made)))

    def took(arm: Arm) -> float:
        made.append((arm.tile, arm.num_rows))
        return 1.0

    names = ["Q4_0", "Q8_0"]
    best_tiles({name: [matrix(name)] for name in names}, progress, took)
    arms = len(CANDIDATES) * len(NUM_ROWS)
    steps = arms + NUM_TURNS
    assert [done for done, *_ in told] == list(range(2 * steps + 1))
    assert {total for _, total, *_ in told} == {2 * steps}
    assert [packing for _, _, packing, _ in told[:-1]] == [n for n in names for _ in range(steps)]
    num_made = [*range(arms), *range(arms, arms * (1 + NUM_TURNS), arms)]
    assert [made for *_, made in told[:steps]] == num_made


def test_without_packed_matrices_nothing_is_told() -> None:
    assert best_tiles({}, lambda *told: pytest.fail("told")) == {}


def test_a_run_tells_how_far_kernels_are() -> None:
    """With the time that is spent, before there is any reply."""
    bench = ScriptedBench(RATES, compile_s={"q4_k": 2.0, "q6_k": 5.0})
    events: list[Trial | TileStep] = []
    run(bench, plan(), events.append)
    steps = [event for event in events if isinstance(event, TileStep)]
    assert events[: len(steps)] == steps
    assert [step.at_s for step in steps] == [0, 2, 4, 6, 11, 16, 21]
    assert steps[4] == TileStep("q6_k", 4, 2 * TILE_STEPS, 11)
    assert (steps[-1].done, steps[-1].total) == (2 * TILE_STEPS, 2 * TILE_STEPS)


def test_tiles_become_part_of_the_profile() -> None:
    """And are told."""
    bench = ScriptedBench({"chat": (0.9,) * 7, "code": (0.9,) * 7}, best_tiles={"q4_k": OTHER})
    profile = make_profile(run(bench, plan()), KEY, "smollm2", Conditions({}), Conditions({}))
    assert profile.tiles == {"q4_k": (8, 1)}
    assert any("q4_k (8 columns, 1 SIMD-groups)" in note for note in profile.notes)


@needs_linux
def test_every_matrix_of_a_model_takes_the_tiles_that_are_chosen_later(tmp_path: Path) -> None:
    """They are known once the model is loaded and its profile found; results stay the same."""
    target = tiny_target(dims=replace(DIMS, mlp_size=64))
    path = write_llama(tmp_path, target, lambda name: "F32" if "norm" in name else "Q5_0")
    tiling = Tiling()
    model = gguf_model(open_gguf(path), 64, packed=True, maker=fast, tiling=tiling)
    matrices = packed_matrices(model.target)
    assert matrices
    token_ids = mx.array([3, 1, 4])
    usual = model.target.forward(token_ids, model.target.make_cache())
    tiling.use({m.weight.packing.name: OTHER for m in matrices})
    assert isinstance(model.target, LlamaTarget)
    assert isinstance(model.target.blocks[0].down, PackedMatrix)
    assert model.target.blocks[0].down.tiles.few == OTHER
    assert mx.array_equal(usual, model.target.forward(token_ids, model.target.make_cache())).item()


@needs_linux
def test_every_arm_is_a_right_product() -> None:
    """The tile changes no bit of it."""
    some = [matrix("Q4_0"), replace(matrix("Q8_0", rows=5), dtype=mx.float16)]
    by_rows: dict[int, list[list[mx.array]]] = {}
    for arm in make_arms(some, fast):
        by_rows.setdefault(arm.num_rows, []).append(arm.run())
    assert sorted(by_rows) == list(NUM_ROWS)
    for products in by_rows.values():
        assert len(products) == len(CANDIDATES)
        for found in products[1:]:
            for one, other in zip(found, products[0], strict=True):
                assert mx.array_equal(one, other).item()


def test_the_largest_matrices_of_each_format_are_timed() -> None:
    """As many as are more than a cache holds, and none of experts."""
    small, large = matrix("Q4_0", rows=2), matrix("Q4_0", rows=9)
    of_experts = gguf_weight("Q8_0", matrix("Q8_0").weight.codes.reshape(2, 3, -1), 64)
    found = sample([small, large, PackedMatrix(of_experts), matrix("Q8_0")])
    assert found["q4_0"] == [large, small]
    assert [len(m.weight.shape) for m in found["q8_0"]] == [2]
