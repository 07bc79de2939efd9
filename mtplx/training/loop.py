"""The training loop: steps down the unrolled cross-entropy.

What computes the gradients is handed to it; in MLX the batch is split over CPU streams.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx

from mtplx.errors import TrainingError
from mtplx.models.head import dense_head
from mtplx.models.llama import LlamaDims, LlamaTarget
from mtplx.models.matrix import Matrix
from mtplx.models.shortlist import Shortlist
from mtplx.training.examples import Batch
from mtplx.training.loss import softmax_and_loss
from mtplx.training.optimiser import Optimiser, Parameters, update
from mtplx.training.unrolled import unroll

Gradients = Callable[[Parameters, Batch, tuple[float, ...]], tuple[mx.array, Parameters]]
"""Loss of a batch unrolled `len(weights)` deep, as `batch_loss`, and its gradients."""
WARM_UP = 50  # steps in which the learning rate rises


@dataclass(frozen=True, slots=True)
class Stage:
    """A stretch of training: unrolled `len(weights)` deep, the loss of each step weighted."""

    num_steps: int
    weights: tuple[float, ...]
    learning_rate: float
    final_rate: float  # cosine from learning_rate to this
    num_windows: int = 8
    num_anchors: int = 256


def batch_loss(
    parameters: Parameters,
    batch: Batch,
    dims: LlamaDims,
    embedding: Matrix,
    shortlist: Shortlist,
    weights: tuple[float, ...],
) -> mx.array:
    """Mean cross-entropy over anchors, the steps weighted by `weights`."""
    num_blocks = sum(name.endswith(".qkv") for name in parameters)
    head = dense_head(parameters, num_blocks)
    embedded = embedding.rows(batch.token_ids)
    states = unroll(dims, head, embedded, batch.hidden, len(weights))
    rows = batch.hidden.shape[1]
    total = mx.array(0.0)
    for step, (weight, g) in enumerate(zip(weights, states, strict=True)):
        columns = batch.top_columns[:, step : step + rows].reshape(-1, batch.top_columns.shape[-1])
        probs = batch.top_probs[:, step : step + rows].reshape(-1, batch.top_probs.shape[-1])
        logits = shortlist.logits(g.reshape(-1, g.shape[-1]))
        result: Any = softmax_and_loss(logits, columns, probs)
        total = total + weight * result[0].mean()
    return total / sum(weights)


def rate_at(stage: Stage, step: int, num_steps: int) -> float:
    """The learning rate of a step of a stage, `num_steps` of the whole training being done."""
    cosine = 0.5 * (1 + math.cos(math.pi * step / max(1, stage.num_steps - 1)))
    rate = stage.final_rate + (stage.learning_rate - stage.final_rate) * cosine
    return rate * min(1.0, (num_steps + 1) / WARM_UP)


def train(
    gradients: Gradients,
    parameters: Parameters,
    state: Optimiser,
    stage: Stage,
    data: Iterator[Batch],
    steps: range,
) -> Iterator[tuple[int, float, Parameters, Optimiser]]:
    """Yield (step, loss, parameters, optimiser) after each of `steps` of the stage.

    Raises TrainingError where the loss is no longer a number.
    """
    for step in steps:
        loss, slopes = gradients(parameters, next(data), stage.weights)
        rate = rate_at(stage, step, state.num_steps)
        parameters, state = update(parameters, slopes, state, rate)
        mx.eval(parameters, state.first, state.second, loss)
        value = float(loss.item())  # type: ignore[arg-type]  # a real scalar
        if not math.isfinite(value):
            raise TrainingError(
                f"The loss is {value} at step {step + 1}: training has come apart. Delete the "
                "checkpoint and try another --seed."
            )
        yield step, value, parameters, state


def default_streams() -> list[mx.Stream]:
    """Two for the CPU, one where MLX has a GPU."""
    streams = [mx.default_stream(mx.default_device())]
    if not mx.metal.is_available():
        streams.append(mx.new_stream(mx.cpu))
    return streams


def mlx_gradients(
    target: LlamaTarget, shortlist: Shortlist, streams: Sequence[mx.Stream]
) -> Gradients:
    """In MLX, each stream with its share of a batch's windows.

    On a CPU a stream is a thread, and what is not a matrix product runs on one thread each.
    """

    def gradients(
        parameters: Parameters, batch: Batch, weights: tuple[float, ...]
    ) -> tuple[mx.array, Parameters]:
        gradient = mx.value_and_grad(
            partial(
                batch_loss,
                dims=target.dims,
                embedding=target.embedding,
                shortlist=shortlist,
                weights=weights,
            )
        )
        num_windows = batch.hidden.shape[0]
        count = min(len(streams), num_windows)
        parts = []
        for i, stream in enumerate(streams[:count]):
            with mx.stream(stream):
                parts.append(gradient(parameters, _part(batch, i, count)))
        mx.async_eval(parts)
        shares = [len(range(i, num_windows, count)) / num_windows for i in range(count)]
        return _mean(parts, shares)

    return gradients


def _mean(
    parts: Sequence[tuple[mx.array, Parameters]], shares: Sequence[float]
) -> tuple[mx.array, Parameters]:
    """Losses and gradients of parts of a batch as the batch's."""
    loss = sum((s * part for s, (part, _) in zip(shares, parts, strict=True)), mx.array(0.0))
    gradients = {
        name: sum((s * g[name] for s, (_, g) in zip(shares, parts, strict=True)), mx.array(0.0))
        for name in parts[0][1]
    }
    return loss, gradients


def _part(batch: Batch, index: int, count: int) -> Batch:
    fields = (batch.token_ids, batch.hidden, batch.top_columns, batch.top_probs)
    return Batch(*(f[index::count] for f in fields))
