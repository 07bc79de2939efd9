"""The optimiser against its formulas in double precision."""

import math

import mlx.core as mx
import numpy as np
import pytest

from mtplx.training.optimiser import Optimiser, begin, orthogonal, update


def as_arrays(values: dict[str, np.ndarray]) -> dict[str, mx.array]:
    return {name: mx.array(value.astype(np.float32)) for name, value in values.items()}


def newton_schulz(matrix: np.ndarray) -> np.ndarray:
    """Five rounds of Jordan's quintic on the singular values themselves."""
    u, s, v = np.linalg.svd(matrix, full_matrices=False)
    s = s / np.linalg.norm(matrix)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return np.asarray((u * s) @ v)


def test_an_update_is_muon_for_matrices_and_adamw_for_vectors() -> None:
    """Three steps of random gradients, one of them clipped, against the formulas."""
    rng = np.random.default_rng(0)
    shapes = {"matrix": (3, 5), "norm": (4,)}
    value = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    first = {name: np.zeros(shape) for name, shape in shapes.items()}
    second = np.zeros(4)
    parameters, state = as_arrays(value), begin(as_arrays(value))
    for t in range(1, 4):
        scale = 10.0 if t == 2 else 0.05  # the first and third are within the norm of 1
        slopes = {name: rng.normal(size=shape) * scale for name, shape in shapes.items()}
        clip = min(1.0, 1.0 / math.sqrt(sum(float((g**2).sum()) for g in slopes.values())))
        g = slopes["matrix"] * clip
        first["matrix"] = 0.95 * first["matrix"] + 0.05 * g
        step = newton_schulz(0.95 * first["matrix"] + 0.05 * g) * 0.2 * math.sqrt(5)
        value["matrix"] = value["matrix"] * (1 - 0.1 * 0.1) - 0.1 * step
        g = slopes["norm"] * clip
        first["norm"] = 0.9 * first["norm"] + 0.1 * g
        second = 0.95 * second + 0.05 * g**2
        m, v = first["norm"] / (1 - 0.9**t), second / (1 - 0.95**t)
        value["norm"] = value["norm"] - 0.1 * m / (np.sqrt(v) + 1e-8)
        parameters, state = update(parameters, as_arrays(slopes), state, 0.1)
        for name in shapes:
            np.testing.assert_allclose(np.array(parameters[name]), value[name], rtol=1e-4)
    assert state.num_steps == 3


@pytest.mark.parametrize("shape", [(40, 90), (90, 40), (64, 64)])
def test_singular_values_are_brought_near_one(shape: tuple[int, int]) -> None:
    """Those above a hundredth of the norm, whichever side of the matrix is the longer."""
    matrix = np.random.default_rng(1).normal(size=shape)
    found = np.array(orthogonal(mx.array(matrix.astype(np.float32))))
    u, s, v = np.linalg.svd(matrix, full_matrices=False)
    kept = np.diag(u.T @ found @ v.T)[s > 0.01 * np.linalg.norm(matrix)]
    assert len(kept) > 30
    assert kept.min() > 0.6
    assert kept.max() < 1.25


def test_a_matrix_without_a_gradient_stays_a_number() -> None:
    """A gradient of zeros has no direction, and moves nothing but the decay."""
    parameters = {"matrix": mx.ones((2, 3))}
    moved, _ = update(parameters, {"matrix": mx.zeros((2, 3))}, begin(parameters), 0.1)
    assert np.allclose(np.array(moved["matrix"]), 0.99)


def test_an_update_leaves_what_it_was_given() -> None:
    """A step that is interrupted can be forgotten."""
    parameters = {"matrix": mx.ones((2, 2))}
    state = begin(parameters)
    update(parameters, {"matrix": mx.ones((2, 2))}, state, 0.1)
    assert parameters["matrix"].tolist() == [[1, 1], [1, 1]]
    assert state == Optimiser(state.first, state.second, 0)
    assert state.first["matrix"].tolist() == [[0, 0], [0, 0]]


def test_the_order_of_parameters_does_not_matter() -> None:
    """A file names them in another order, and training goes on with the same bits."""
    rng = np.random.default_rng(4)
    names = [f"blocks.{i}" for i in range(12)]
    slopes = {name: mx.array(rng.normal(size=(5, 7)).astype(np.float32)) for name in names}
    parameters = {name: mx.ones((5, 7)) for name in names}
    expected, _ = update(parameters, slopes, begin(parameters), 0.1)
    for _ in range(40):
        rng.shuffle(names)
        turned = {name: parameters[name] for name in names}
        found, _ = update(turned, {n: slopes[n] for n in names}, begin(turned), 0.1)
        assert all(mx.array_equal(found[name], expected[name]).item() for name in names)
