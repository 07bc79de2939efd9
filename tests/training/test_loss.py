"""The loss and its gradient against plain formulas in double precision."""

from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from mtplx.models.shortlist import make_shortlist
from mtplx.training.examples import batches, make_example
from mtplx.training.initialise import initial_parameters
from mtplx.training.loop import batch_loss
from mtplx.training.loss import fast_exp, softmax_and_loss
from tests.tiny import tiny_target
from tests.training.small import random_passages

Doubles = npt.NDArray[np.float64]


def scene(seed: int, spread: float, rows: int = 6) -> tuple[Doubles, Any, Doubles]:
    """Logits [N, S], columns [N, K] and probabilities [N, K] of a p that lies on them."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(rows, 40)) * spread
    columns = np.stack([rng.permutation(40)[:7] for _ in range(rows)]).astype(np.int32)
    return logits, columns, rng.dirichlet(np.ones(7), rows)


def losses(logits: mx.array, columns: Any, probs: Doubles) -> mx.array:
    result: Any = softmax_and_loss(logits, mx.array(columns), mx.array(probs.astype(np.float32)))
    return result[0]  # type: ignore[no-any-return]


def reference(logits: Doubles, columns: Any, probs: Doubles) -> tuple[Doubles, Doubles]:
    """Cross-entropy [N] and the gradient of its sum [N, S]."""
    shifted = logits - logits.max(-1, keepdims=True)
    log_q = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    p = np.zeros_like(logits)
    np.put_along_axis(p, columns, probs, axis=-1)
    return -(p * log_q).sum(-1), np.exp(log_q) - p


@pytest.mark.parametrize("spread", [0.1, 2.0, 8.0])
def test_the_loss_is_the_cross_entropy(spread: float) -> None:
    """Up to the error of the exponential, however far the logits lie apart."""
    logits, columns, probs = scene(1, spread)
    found = np.array(losses(mx.array(logits.astype(np.float32)), columns, probs))
    np.testing.assert_allclose(found, reference(logits, columns, probs)[0], rtol=2e-3)


@pytest.mark.parametrize("spread", [0.1, 2.0, 8.0])
def test_the_gradient_is_that_of_the_kullback_leibler_divergence(spread: float) -> None:
    """q - p at every column, to 0.2 % of a probability."""
    logits, columns, probs = scene(2, spread)
    gradient = mx.grad(lambda x: losses(x, columns, probs).sum())
    found = np.array(gradient(mx.array(logits.astype(np.float32))))
    np.testing.assert_allclose(found, reference(logits, columns, probs)[1], atol=2e-3)


def test_rows_weigh_as_much_as_they_are_asked_to() -> None:
    """The gradient of a weighted sum is the weighted sum of gradients."""
    logits, columns, probs = scene(3, 2.0)
    weights = np.array([0.0, 1.0, -2.0, 0.5, 3.0, 1.0])
    gradient = mx.grad(
        lambda x: (losses(x, columns, probs) * mx.array(weights.astype(np.float32))).sum()
    )
    found = np.array(gradient(mx.array(logits.astype(np.float32))))
    expected = reference(logits, columns, probs)[1] * weights[:, None]
    np.testing.assert_allclose(found, expected, atol=6e-3)


@pytest.mark.parametrize("spread", [100.0, 1e4, 1e30])
def test_logits_that_lie_far_apart_do_no_harm(spread: float) -> None:
    """What has no weight adds nothing, where a polynomial by itself would grow without bound."""
    logits, columns, probs = scene(4, spread)
    values = mx.array(logits.astype(np.float32))
    found, gradient = mx.value_and_grad(lambda x: losses(x, columns, probs).sum())(values)
    np.testing.assert_allclose(found.item(), reference(logits, columns, probs)[0].sum(), rtol=2e-3)
    np.testing.assert_allclose(np.array(gradient), reference(logits, columns, probs)[1], atol=2e-3)


def test_the_fast_exponential_keeps_its_bound() -> None:
    """To 0.2 % down to -10; below that between 0 and the true value, and never rising."""
    x = np.linspace(-300, 0, 300_001)
    found = np.array(fast_exp(mx.array(x.astype(np.float32)))).astype(np.float64)
    exact = np.exp(x.astype(np.float32).astype(np.float64))
    near = x >= -10
    np.testing.assert_allclose(found[near], exact[near], rtol=2e-3)
    assert (found[~near] >= 0).all()
    assert (found[~near] <= exact[~near] * (1 + 1e-5) + 1e-37).all()
    assert (np.diff(found) >= -1e-6 * found[1:]).all()


def test_the_gradient_of_a_head_is_the_slope_of_its_loss() -> None:
    """Along random directions, autodiff through three steps equals finite differences."""
    target = tiny_target()
    shortlist = make_shortlist(target.lm_head, mx.arange(0, 64, 2, dtype=mx.int32))
    examples = [make_example(p, shortlist) for p in random_passages(target, [20] * 4)]
    parameters = initial_parameters(target, [e.passage.token_ids.tolist() for e in examples])
    batch = next(batches(examples, num_windows=4, num_anchors=12, depth=3, seed=0))
    loss = partial(
        batch_loss,
        batch=batch,
        dims=target.dims,
        embedding=target.embedding,
        shortlist=shortlist,
        weights=(1.0, 0.7, 0.5),
    )
    gradients = mx.grad(loss)(parameters)
    rng = np.random.default_rng(0)
    for name, value in parameters.items():
        direction = mx.array(rng.normal(size=value.shape).astype(np.float32))
        direction = direction * mx.sqrt(mx.mean(value.square()))

        def slope(by: float, name: str = name, direction: mx.array = direction) -> float:
            ends = [{**parameters, name: parameters[name] + s * by * direction} for s in (1, -1)]
            return float((loss(ends[0]) - loss(ends[1])).item()) / (2 * by)  # type: ignore[arg-type]

        extrapolated = (4 * slope(0.005) - slope(0.01)) / 3
        found = (gradients[name] * direction).sum().item()
        assert found == pytest.approx(extrapolated, rel=0.01, abs=2e-4), name
