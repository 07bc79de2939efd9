"""Gradients in PyTorch against MLX's, which are checked against finite differences."""

from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mtplx.models.llama import LlamaDims, LlamaTarget
from mtplx.models.shortlist import make_shortlist
from mtplx.training.examples import Batch, batches, make_example
from mtplx.training.initialise import initial_parameters
from mtplx.training.loop import default_streams, mlx_gradients
from mtplx.training.optimiser import Parameters
from mtplx.training.torch_gradients import CHUNK, cross_entropy, torch_gradients
from mtplx.training.torch_trunk import Dtype
from tests.tiny import DIMS, tiny_target
from tests.training.small import random_passages

WEIGHTS = (1.0, 0.7, 0.5, 0.3)
UNEQUAL = replace(DIMS, num_heads=6, num_kv_heads=2, head_dim=6, rope_base=500.0)
SHORTLIST_IDS = mx.arange(0, 64, 2, dtype=mx.int32)


def scene(
    dims: LlamaDims, depth: int, num_blocks: int = 1
) -> tuple[LlamaTarget, Parameters, Batch]:
    """A batch, and parameters of which none is zero."""
    target = tiny_target(dims=dims)
    shortlist = make_shortlist(target.lm_head, SHORTLIST_IDS)
    examples = [make_example(p, shortlist) for p in random_passages(target, [24] * 5)]
    windows = [e.passage.token_ids.tolist() for e in examples]
    start = initial_parameters(target, windows, num_blocks=num_blocks)
    rng = np.random.default_rng(2)
    parameters = {
        name: value + mx.array(rng.normal(size=value.shape).astype(np.float32)) * 0.1
        for name, value in start.items()
    }
    return (
        target,
        parameters,
        next(batches(examples, num_windows=5, num_anchors=16, depth=depth, seed=0)),
    )


def both(
    dims: LlamaDims, depth: int, dtype: Dtype, num_blocks: int = 1
) -> tuple[tuple[float, Parameters], tuple[float, Parameters]]:
    """Loss and gradients of MLX, and of PyTorch."""
    target, parameters, batch = scene(dims, depth, num_blocks)
    shortlist = make_shortlist(target.lm_head, SHORTLIST_IDS)
    found: list[Any] = []
    for gradients in (
        mlx_gradients(target, shortlist, default_streams()),
        torch_gradients(target, shortlist, dtype),
    ):
        loss, slopes = gradients(parameters, batch, WEIGHTS[:depth])
        found.append((loss.item(), slopes))
    return found[0], found[1]


def distance(one: mx.array, other: mx.array) -> float:
    """Of two arrays, as a part of the first one's length."""
    first, second = np.array(one, np.float64), np.array(other, np.float64)
    assert first.shape == second.shape
    return float(np.linalg.norm(first - second) / np.linalg.norm(first))


@pytest.mark.parametrize(
    ("dims", "num_blocks", "depth"), [(DIMS, 1, 1), (DIMS, 1, 3), (UNEQUAL, 1, 4), (UNEQUAL, 2, 2)]
)
def test_in_float32_they_are_mlx_s(dims: LlamaDims, num_blocks: int, depth: int) -> None:
    """Up to 0.2 %, the error of MLX's exponential, at every depth and for heads of any shape."""
    (loss, expected), (torch_loss, found) = both(dims, depth, "float32", num_blocks)
    assert torch_loss == pytest.approx(loss, rel=2e-3)
    assert found.keys() == expected.keys()
    assert {n: d for n in expected if (d := distance(expected[n], found[n])) > 2e-3} == {}


@pytest.mark.parametrize("depth", [1, 3])
def test_in_bfloat16_they_are_close(depth: int) -> None:
    """The whole gradient is within 6 % of its length, the loss within 1 %."""
    (loss, expected), (torch_loss, found) = both(UNEQUAL, depth, "bfloat16", 2)
    assert torch_loss == pytest.approx(loss, rel=0.01)
    whole = [
        mx.concatenate([slopes[n].flatten() for n in expected]) for slopes in (expected, found)
    ]
    assert distance(*whole) < 0.06
    assert all(value.dtype == mx.float32 for value in found.values())


def test_the_cross_entropy_is_whole_whatever_its_rows() -> None:
    """Around the bounds of a chunk the loss and each row's gradient are the formula's."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(40, 8))
    for rows in (1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3):
        g, probs = rng.normal(size=(rows, 8)), rng.dirichlet(np.ones(5), rows)
        columns = np.stack([rng.permutation(40)[:5] for _ in range(rows)])
        logits = g @ weight.T
        log_q = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        p = np.zeros_like(logits)
        np.put_along_axis(p, columns, probs, axis=-1)
        floats = [torch.from_numpy(x).float() for x in (g, weight, probs)]
        loss, slope = cross_entropy(floats[0], floats[1], torch.from_numpy(columns), floats[2])
        assert loss == pytest.approx(-(p * log_q).sum(-1).mean(), rel=1e-4)
        np.testing.assert_allclose(slope * rows, (np.exp(log_q) - p) @ weight, atol=1e-4)


def test_a_loss_that_is_not_a_number_shows() -> None:
    """Parameters that have come apart are met in the loss, which ends training."""
    target, parameters, batch = scene(DIMS, 1)
    gradients = torch_gradients(target, make_shortlist(target.lm_head, SHORTLIST_IDS))
    loss, _ = gradients({**parameters, "norm": mx.full((32,), mx.nan)}, batch, (1.0,))
    assert mx.isnan(loss).item()


def test_parameters_stay_as_they_are() -> None:
    """What is handed over is copied, and asking twice gives the same bits."""
    target, parameters, batch = scene(DIMS, 2)
    before = {name: np.array(value) for name, value in parameters.items()}
    gradients = torch_gradients(target, make_shortlist(target.lm_head, SHORTLIST_IDS))
    (one, slopes), (other, again) = (gradients(parameters, batch, (1.0, 0.5)) for _ in range(2))
    assert one.item() == other.item()
    for name, value in parameters.items():
        assert np.array_equal(value, before[name])
        assert mx.array_equal(slopes[name], again[name])
