"""The training loop: AdamW on the unrolled cross-entropy, the batch split over CPU streams."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx

from mtplx.models.head import Shortlist, dense_head
from mtplx.models.llama import LlamaDims
from mtplx.models.matrix import Matrix
from mtplx.training.examples import Batch
from mtplx.training.loss import softmax_and_loss
from mtplx.training.unrolled import unroll

Parameters = dict[str, mx.array]


@dataclass(frozen=True, slots=True)
class Stage:
    """A stretch of training: unrolled `len(weights)` deep, the loss of each step weighted."""

    num_steps: int
    weights: tuple[float, ...]
    learning_rate: float
    final_rate: float  # cosine from learning_rate to this
    num_windows: int = 8
    num_anchors: int = 256


@dataclass(slots=True)
class AdamW:
    """State of the optimiser (Loshchilov & Hutter, arXiv 1711.05101), betas .9 and .95."""

    first: Parameters
    second: Parameters
    num_steps: int = 0


def adamw(parameters: Parameters) -> AdamW:
    zeros = {name: mx.zeros_like(value) for name, value in parameters.items()}
    return AdamW(zeros, dict(zeros))


def update(
    parameters: Parameters, gradients: Parameters, state: AdamW, rate: float, decay: float = 0.01
) -> Parameters:
    """One step, the gradient clipped to norm 1; matrices decay, norms do not."""
    norm = mx.sqrt(sum((g.square().sum() for g in gradients.values()), mx.array(0.0)))
    clip = mx.minimum(1.0, 1.0 / (norm + 1e-6))
    state.num_steps += 1
    correct_1, correct_2 = 1 - 0.9**state.num_steps, 1 - 0.95**state.num_steps
    updated = {}
    for name, value in parameters.items():
        g = gradients[name] * clip
        state.first[name] = 0.9 * state.first[name] + 0.1 * g
        state.second[name] = 0.95 * state.second[name] + 0.05 * g.square()
        change = (state.first[name] / correct_1) / (mx.sqrt(state.second[name] / correct_2) + 1e-8)
        shrink = 1 - rate * decay if value.ndim > 1 else 1.0
        updated[name] = value * shrink - rate * change
    return updated


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


def _part(batch: Batch, index: int, count: int) -> Batch:
    fields = (batch.token_ids, batch.hidden, batch.top_columns, batch.top_probs)
    return Batch(*(f[index::count] for f in fields))


def train(
    parameters: Parameters,
    state: AdamW,
    stage: Stage,
    data: Iterator[Batch],
    dims: LlamaDims,
    embedding: Matrix,
    shortlist: Shortlist,
    streams: Sequence[mx.Stream],
    steps: range,
) -> Iterator[tuple[int, float, Parameters]]:
    """Yield (step, loss, parameters) after each of `steps` of the stage. The batch is split among `streams`: on a
    CPU each is a thread, and what is not a matrix product runs on one thread each."""
    gradient = mx.value_and_grad(
        partial(
            batch_loss, dims=dims, embedding=embedding, shortlist=shortlist, weights=stage.weights
        )
    )
    for step in steps:
        batch = next(data)
        parts = []
        for i, stream in enumerate(streams):
            with mx.stream(stream):
                parts.append(gradient(parameters, _part(batch, i, len(streams))))
        mx.async_eval(parts)
        losses = [loss for loss, _ in parts]
        gradients = {
            name: sum((g[name] for _, g in parts), mx.array(0.0)) / len(parts)
            for name in parameters
        }
        share = step / max(1, stage.num_steps - 1)
        cosine = 0.5 * (1 + math.cos(math.pi * share))
        rate = stage.final_rate + (stage.learning_rate - stage.final_rate) * cosine
        rate *= min(1.0, (state.num_steps + 1) / 50)
        parameters = update(parameters, gradients, state, rate)
        mx.eval(parameters, state.first, state.second, losses)
        yield step, sum(loss.item() for loss in losses) / len(losses), parameters  # type: ignore[misc]
