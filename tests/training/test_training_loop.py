"""A loop that learns, whatever it is split into."""

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mtplx.errors import TrainingError
from mtplx.training.examples import Batch, batches, make_example
from mtplx.training.initialise import initial_parameters
from mtplx.training.loop import WARM_UP, Gradients, Stage, mlx_gradients, rate_at, train
from mtplx.training.optimiser import Parameters, begin
from tests.tiny import random_prompt, whole_vocabulary
from tests.training.small import foreseeable_target, random_passages

TARGET = foreseeable_target(spread=0.3)
STAGE = Stage(12, (1.0, 0.5), 3e-3, 1e-3, num_windows=4, num_anchors=16)


def gradients(num_streams: int = 2) -> Gradients:
    streams = [mx.default_stream(mx.cpu), *(mx.new_stream(mx.cpu) for _ in range(num_streams - 1))]
    return mlx_gradients(TARGET, whole_vocabulary(TARGET), streams)


def start() -> Parameters:
    return initial_parameters(TARGET, [random_prompt(32, seed=n) for n in range(8)])


def data(first_step: int = 0) -> Iterator[Batch]:
    examples = [
        make_example(p, whole_vocabulary(TARGET)) for p in random_passages(TARGET, [24] * 8)
    ]
    return batches(examples, num_windows=4, num_anchors=16, depth=2, seed=1, first_step=first_step)


def steps(num_streams: int = 2, steps: range = range(12)) -> list[Any]:
    parameters = start()
    return list(train(gradients(num_streams), parameters, begin(parameters), STAGE, data(), steps))


def test_the_rate_warms_up_once_and_falls_along_a_cosine() -> None:
    """From nothing to the full rate over the first steps of all, then down to the final rate."""
    stage = Stage(1001, (1.0,), 8e-4, 2e-4)
    assert rate_at(stage, 0, 0) == pytest.approx(8e-4 / WARM_UP)
    assert rate_at(stage, 0, 5000) == pytest.approx(8e-4)
    assert rate_at(stage, 500, 500) == pytest.approx(5e-4)
    assert rate_at(stage, 1000, 1000) == pytest.approx(2e-4)
    assert rate_at(Stage(1, (1.0,), 8e-4, 2e-4), 0, 100) == pytest.approx(8e-4)


def test_training_lowers_the_loss() -> None:
    """On few passages, seen again and again, each stretch of steps is better than the last."""
    stage = Stage(60, (1.0, 0.5), 3e-3, 1e-3, num_windows=4, num_anchors=16)
    parameters = start()
    losses = [
        loss
        for _, loss, _, _ in train(
            gradients(), parameters, begin(parameters), stage, data(), range(60)
        )
    ]
    thirds = np.array(losses).reshape(3, 20).mean(axis=1)
    assert thirds[0] > thirds[1] + 0.02
    assert thirds[1] > thirds[2] + 0.02


@pytest.mark.parametrize("num_streams", [1, 3, 5])
def test_the_number_of_streams_changes_nothing_but_rounding(num_streams: int) -> None:
    """Shares that are not equal weigh as much as they are, and streams without a share none."""
    expected = steps(2)
    found = steps(num_streams)
    for one, other in zip(expected, found, strict=True):
        assert one[1] == pytest.approx(other[1], rel=1e-3)


def test_steps_can_be_taken_one_at_a_time() -> None:
    """Going on from what a step gave is the same, bit for bit, as never having stopped."""
    parameters = start()
    state = begin(parameters)
    for step in range(12):
        following = range(step, step + 1)
        only = train(gradients(), parameters, state, STAGE, data(step), following)
        ((done, loss, parameters, state),) = only
        assert done == step
    *_, (_, last_loss, at_once, at_once_state) = steps()
    assert loss == last_loss
    assert state.num_steps == at_once_state.num_steps == 12
    assert all(mx.array_equal(parameters[name], at_once[name]).item() for name in at_once)


def test_a_loss_that_is_not_a_number_stops_training() -> None:
    """The step is named, and no broken head comes of it."""
    parameters = {**start(), "norm": mx.full((32,), mx.nan)}
    training = train(gradients(), parameters, begin(parameters), STAGE, data(), range(12))
    with pytest.raises(TrainingError, match=r"loss is nan at step 1.*--seed"):
        next(training)
