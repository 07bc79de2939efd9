"""Rows of a length that no multiple of 16 weights makes stay packed, with zeros between."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mtplx.kernels.packing import PackedWeight
from mtplx.kernels.product import (
    embed,
    multiply,
    multiply_by_experts,
    multiply_by_sorted_experts,
)
from mtplx.kernels.rows import RowRun, joined_rows, taken_rows
from mtplx.kernels.source import Maker
from mtplx.loading.expanded_tensors import Manner, foreign_tensors
from mtplx.loading.native_folder import folder_model
from mtplx.models.family import Tensors
from mtplx.models.packed import held_arrays
from tests.kernels.figures import random_rows
from tests.kernels.hosts import checked
from tests.kernels.platforms import needs_linux
from tests.kernels.test_product import BOUND
from tests.loading.test_foreign_packing import Floats, e4m3, numbers
from tests.metal_host.dtypes import to_numpy
from tests.tiny import close, random_prompt
from tests.tiny_folder import write_folder

ROWS = 11
NAME = "l.weight"
Made = tuple[dict[str, Any], Floats, tuple[int, int]]  # parts, weights, tile


def fp8(width: int, tile: tuple[int, int] | None = None) -> Made:
    """With a scale for each row, or for each tile."""
    codes = numbers(ROWS, width, seed=width) & 0xBF
    random = np.random.default_rng(width)
    if tile is None:
        scale = random.uniform(0.5, 2, (ROWS, 1)).astype(np.float32) / 64
        return {"weight": codes, "weight_scale": scale}, e4m3(codes) * scale, (128, 128)
    shape = (-(-ROWS // tile[0]), -(-width // tile[1]))
    scale = random.uniform(0.5, 2, shape).astype(np.float32) / 64
    wide = np.repeat(np.repeat(scale, tile[0], 0), tile[1], 1)[:ROWS, :width]
    return {"weight": codes, "weight_scale_inv": scale}, e4m3(codes) * wide, tile


def whole(bits: int, width: int, group: int) -> Made:
    """compressed-tensors' whole numbers, the last word of a row filled up."""
    random = np.random.default_rng([bits, width])
    codes = random.integers(0, 2**bits, (ROWS, width), dtype=np.uint32)
    scale = random.uniform(0.5, 2, (ROWS, width // group)).astype(np.float16) / 64
    fields = np.pad(codes, [(0, 0), (0, -width % (32 // bits))]).reshape(ROWS, -1, 32 // bits)
    words = (fields << np.arange(0, 32, bits, dtype=np.uint32)).sum(-1, dtype=np.uint32)
    parts = {"weight_packed": words.view(np.int32), "weight_scale": scale}
    parts["weight_shape"] = np.array([ROWS, width])
    wide = np.repeat(scale.astype(np.float32), group, 1)
    return parts, (codes.astype(np.float32) - 2 ** (bits - 1)) * wide, (128, 128)


CASES: dict[str, Callable[[], Made]] = {
    "FP8 rows of 24": lambda: fp8(24),
    "FP8 rows of 1037": lambda: fp8(1037),
    "FP8 tiles of 4 x 24": lambda: fp8(72, (4, 24)),
    "FP8 tiles of 4 x 24, the last one cut off": lambda: fp8(60, (4, 24)),
    "FP8 tiles of 128 x 128, the last one cut off": lambda: fp8(300, (128, 128)),
    "FP8 tiles wider than a row": lambda: fp8(24, (4, 40)),
    "8 bits, rows of 41": lambda: whole(8, 41, 41),
    "4 bits, rows of 41": lambda: whole(4, 41, 41),
    "4 bits, groups of 24": lambda: whole(4, 72, 24),
    "4 bits, groups of 5": lambda: whole(4, 45, 5),
    "2 bits, groups of 24": lambda: whole(2, 48, 24),
}


def tensors_of(made: Made) -> Tensors:
    return {f"l.{part}": mx.array(np.asarray(array)) for part, array in made[0].items()}


def packed(made: Made, maker: Maker) -> PackedWeight:
    found = foreign_tensors(tensors_of(made), Manner(keep=True, maker=maker, block=made[2]))
    (each,) = found.matrices.values()
    assert each.why is None
    assert each.matrix is not None
    return each.matrix.weight


def error(x: mx.array, weights: Floats, got: mx.array) -> float:
    want = to_numpy(x).astype(np.float64) @ weights.astype(np.float64).T
    return float(np.abs(to_numpy(got).astype(np.float64) - want).max() / np.abs(want).max())


@pytest.mark.parametrize("case", CASES)
def test_weights_are_those_that_are_expanded(case: str, maker: Maker) -> None:
    """To the bit where a factor of a row is no part of it."""
    made = CASES[case]()
    weight = packed(made, maker)
    dense = foreign_tensors(tensors_of(made), Manner(block=made[2])).expanded()[NAME]
    assert np.array_equal(np.array(dense), made[1])
    rows = embed(mx.arange(ROWS).astype(mx.uint32), weight, mx.float32, maker=maker)
    assert rows.shape == weight.shape == made[1].shape
    bits: Any = dict(weight.packing.template).get("BITS", 8)
    assert weight.codes.shape == (ROWS, weight.places * bits // 8)
    assert np.array_equal(np.array(rows), made[1])


@pytest.mark.parametrize("rows", [1, 8, 9])
@pytest.mark.parametrize("case", CASES)
def test_products_are_those_of_the_weights(case: str, rows: int, maker: Maker) -> None:
    made = CASES[case]()
    x = random_rows(rows, made[1].shape[1])
    assert error(x, made[1], multiply(x, packed(made, maker), maker=maker)) < BOUND


@pytest.mark.parametrize("case", ["FP8 rows of 24", "4 bits, groups of 24"])
def test_experts_of_such_rows_multiply(case: str, maker: Maker) -> None:
    """Few rows, and many that are sorted."""
    made = CASES[case]()
    weight, weights = packed(made, maker), made[1]
    stack = joined_rows([RowRun(weight, 0, ROWS), RowRun(weight, 0, ROWS)], (2,))
    assert stack is not None
    x = random_rows(3, weights.shape[1])
    few = multiply_by_experts(x, stack, mx.array([1, 0, 1]).astype(mx.uint32), maker=maker)
    ranges = mx.array([[0, 1], [1, 3]]).astype(mx.uint32)
    many = multiply_by_sorted_experts(x, stack, ranges, maker=maker)
    assert error(x, weights, few) < BOUND
    assert error(x, weights, many) < BOUND


def test_rows_that_are_taken_keep_their_zeros(maker: Maker) -> None:
    made = CASES["4 bits, groups of 24"]()
    few = taken_rows(packed(made, maker), mx.array([7, 2]))
    x = random_rows(2, made[1].shape[1])
    assert error(x, made[1][[7, 2]], multiply(x, few, maker=maker)) < BOUND


def test_runs_of_other_lengths_are_another_packing(maker: Maker) -> None:
    """Though they take as many places."""
    one, other = (packed(whole(4, 96, group), maker) for group in (24, 32))
    assert joined_rows([RowRun(one, 0, ROWS), RowRun(other, 0, ROWS)], ()) is None


@needs_linux
@pytest.mark.parametrize("case", CASES)
def test_nothing_that_is_undefined_is_done(case: str) -> None:
    """No read out of bounds, misaligned or of what is not there."""
    made = CASES[case]()
    weight, width = packed(made, checked), made[1].shape[1]
    for rows in (3, 9):
        multiply(random_rows(rows, width), weight, maker=checked)
    embed(mx.array([10, 0]).astype(mx.uint32), weight, mx.float16, maker=checked)


@pytest.mark.slow
def test_a_model_of_such_rows_stays_packed(maker: Maker, tmp_path: Path) -> None:
    """The logits of the same matrices expanded; what is held is little more than what is stored."""
    folder = write_folder(tmp_path / "m", hidden_size=40)
    tensors: Any = mx.load(str(folder / "model.safetensors"))
    num_bytes = 0
    for name in [name for name in tensors if "_proj." in name]:
        rows, width = tensors.pop(name).shape
        base = name.removesuffix(".weight")
        tensors[name] = mx.array(numbers(rows, width, seed=len(tensors)) & 0xBF)
        tensors[f"{base}.weight_scale"] = mx.full((rows, 1), 1 / width)
        num_bytes += rows * width
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)
    logits = []
    for manner in (Manner(), Manner(keep=True, maker=maker)):
        model = folder_model(folder, manner=manner)
        hidden = model.target.forward(mx.array(random_prompt(12)), model.target.make_cache())
        logits.append(model.target.logits(model.target.normalise(hidden)))
    assert model.note is None
    assert close(*logits, bound=2e-3)
    assert num_bytes < sum(a.nbytes for a in held_arrays(model.target.model)) < 1.5 * num_bytes
