"""Where a head starts from: near the trunk, however the trunk is stored."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from mtplx.models.head import dense_head
from mtplx.models.llama import LlamaTarget
from mtplx.models.matrix import AffineMatrix, DenseMatrix, JoinedMatrix
from mtplx.training.examples import batches, make_example
from mtplx.training.initialise import initial_parameters
from mtplx.training.loop import batch_loss
from mtplx.training.optimiser import Parameters
from mtplx.training.unrolled import unroll
from tests.tiny import DIMS, random_matrix, random_prompt, tiny_target, whole_vocabulary
from tests.training.small import foreseeable_target, random_passages

WINDOWS = [random_prompt(64, seed=n) for n in range(48)]


def loss_of(target: LlamaTarget, parameters: Parameters) -> float:
    """On text that the parameters were not made from, three steps deep."""
    shortlist = whole_vocabulary(target)
    examples = [make_example(p, shortlist) for p in random_passages(target, [48] * 4, seed=5)]
    batch = next(batches(examples, num_windows=4, num_anchors=40, depth=3, seed=0))
    weights = (1.0, 1.0, 1.0)
    loss = batch_loss(parameters, batch, target.dims, target.embedding, shortlist, weights)
    return float(loss.item())  # type: ignore[arg-type]  # a real scalar


def randomised(parameters: Parameters, *names: str) -> Parameters:
    """With random matrices of the same shapes in place of some."""
    rng = np.random.default_rng(0)
    random = {name: random_matrix(rng, *parameters[name].shape).weight for name in names}
    return {**parameters, **random}


@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_a_head_starts_far_below_random_parameters(spread: float) -> None:
    """On a trunk that a head can foresee it starts below knowing nothing, as random ones do not."""
    target = foreseeable_target(spread)
    parameters = initial_parameters(target, WINDOWS)
    matrices = [name for name, value in parameters.items() if value.ndim == 2]
    started, nothing = loss_of(target, parameters), float(np.log(DIMS.vocab_size))
    assert started < nothing - 0.3
    assert loss_of(target, randomised(parameters, *matrices)) > started + 1
    assert loss_of(target, randomised(parameters, "eh_proj")) > started + 1


def test_the_regression_finds_the_input_of_the_last_layer() -> None:
    """Where that input is the embedding itself, the projection passes the embedding on."""
    parameters = initial_parameters(foreseeable_target(), WINDOWS)
    projection = np.array(parameters["eh_proj"])
    expected = np.concatenate([np.eye(32), np.zeros((32, 32))], axis=1)
    np.testing.assert_allclose(projection, expected, atol=0.03)


def test_parameters_are_finite_and_of_the_trunks_shapes() -> None:
    """Ordinary trunks of several layers give a whole set of numbers, however few the windows."""
    target = tiny_target()
    for windows in (WINDOWS, WINDOWS[:1], [[5] * 64] * 4):
        parameters = initial_parameters(target, windows, num_blocks=2)
        for name, value in parameters.items():
            assert value.dtype == mx.float32
            assert mx.all(mx.isfinite(value)).item(), name
        assert parameters["eh_proj"].shape == (32, 64)
        for name in ("attention_norm", "qkv", "output", "mlp_norm", "gate_up", "down"):
            own = getattr(target.blocks[-1], name)
            assert parameters[f"blocks.1.{name}"].shape == own.shape


def test_two_blocks_start_as_one() -> None:
    """A second block changes nothing until it has learned something, at every step."""
    target = tiny_target()
    embedding = target.embedding.rows(mx.array([random_prompt(14)]))
    hidden = mx.array(np.random.default_rng(2).normal(size=(1, 12, 32)).astype(np.float32))
    one, two = (
        unroll(
            target.dims,
            dense_head(initial_parameters(target, WINDOWS[:4], num_blocks=n), n),
            embedding,
            hidden,
            3,
        )
        for n in (1, 2)
    )
    assert all(mx.array_equal(a, b).item() for a, b in zip(one, two, strict=True))


def test_a_second_block_can_learn() -> None:
    """Its output projections begin at zero, but not their gradients."""
    target = foreseeable_target()
    parameters = initial_parameters(target, WINDOWS[:4], num_blocks=2)
    shortlist = whole_vocabulary(target)
    examples = [make_example(p, shortlist) for p in random_passages(target, [20] * 2)]
    batch = next(batches(examples, num_windows=2, num_anchors=12, depth=1, seed=0))
    gradients = mx.grad(
        lambda p: batch_loss(p, batch, target.dims, target.embedding, shortlist, (1.0,))
    )(parameters)
    for name in ("output", "down"):
        assert not mx.any(parameters[f"blocks.1.{name}"]).item()
        assert mx.abs(gradients[f"blocks.1.{name}"]).max().item() > 1e-4  # type: ignore[operator]


def test_packed_and_joined_weights_start_like_dense_ones() -> None:
    """A trunk whose matrices are quantised, or of several kinds in one, gives dense parameters."""
    target = tiny_target()
    block = target.blocks[-1]

    def packed(matrix: DenseMatrix) -> AffineMatrix:
        return AffineMatrix(*mx.quantize(matrix.weight, 32, 8), 8)

    assert isinstance(block.qkv, DenseMatrix)
    assert isinstance(block.gate_up, DenseMatrix)
    upper, lower = mx.split(block.gate_up.weight, [40])
    changed = replace(
        block,
        qkv=packed(block.qkv),
        gate_up=JoinedMatrix((packed(DenseMatrix(upper)), DenseMatrix(lower))),
    )
    trunk = replace(target, blocks=(*target.blocks[:-1], changed))
    parameters = initial_parameters(trunk, WINDOWS[:4])
    for name in ("qkv", "gate_up"):
        weight = getattr(block, name).weight
        found = parameters[f"blocks.0.{name}"]
        np.testing.assert_allclose(np.array(found), np.array(weight), atol=0.02)
