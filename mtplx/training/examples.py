"""Passages as training examples: a shortlist, the trunk's probabilities on it, random windows."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mtplx.errors import TrainingError
from mtplx.models.shortlist import Shortlist
from mtplx.training.own_text import Passage

NUM_TOP = 48  # probabilities kept per position


@dataclass(frozen=True, slots=True)
class Example:
    """A passage with the trunk's distribution at each of its positions.

    top_columns: [T, K] int32, shortlist columns of the largest probabilities after token t;
    top_probs: [T, K] float16, normalised to sum 1.
    """

    passage: Passage
    top_columns: npt.NDArray[np.int32]
    top_probs: npt.NDArray[np.float16]


@dataclass(frozen=True, slots=True)
class Batch:
    """B windows of T anchors, unrolled `depth` deep.

    token_ids: [B, T + depth - 1], column c the token after anchor c; hidden: [B, T, D];
    top_columns, top_probs: [B, T + depth - 1, K], column c p after that token.
    """

    token_ids: mx.array
    hidden: mx.array
    top_columns: mx.array
    top_probs: mx.array


def frequent_ids(passages: Sequence[Passage], vocab_size: int, size: int) -> mx.array:
    """The `size` most frequent token ids, ascending; ties go to the lower id. [size] int32."""
    counts = np.zeros(vocab_size, np.int64)
    for passage in passages:
        counts += np.bincount(passage.token_ids, minlength=vocab_size)
    order = np.argsort(-counts, kind="stable")[: min(size, vocab_size)]
    return mx.array(np.sort(order).astype(np.int32))


def make_example(passage: Passage, shortlist: Shortlist) -> Example:
    """The trunk's distribution over the shortlist, from the passage's hidden states.

    Of each position the NUM_TOP largest probabilities are kept, a sixth of the memory that its
    hidden state takes.
    """
    logits = np.array(shortlist.logits(mx.array(passage.hidden).astype(mx.float32)))
    count = min(NUM_TOP, logits.shape[1])
    columns = np.argpartition(logits, -count, axis=-1)[:, -count:]
    top = np.take_along_axis(logits, columns, axis=-1)
    weights = np.exp(top - top.max(axis=-1, keepdims=True))
    probs = weights / weights.sum(axis=-1, keepdims=True)
    return Example(passage, columns.astype(np.int32), probs.astype(np.float16))


def batches(
    examples: Sequence[Example],
    *,
    num_windows: int,
    num_anchors: int,
    depth: int,
    seed: int,
    first_step: int = 0,
) -> Iterator[Batch]:
    """Endless random windows, passages visited in shuffled order, one batch a step.

    A batch follows from the seed and its step alone, wherever the steps begin. Raises
    TrainingError where there are fewer passages of a window's length than a batch takes.
    """
    span = num_anchors + depth
    usable = [e for e in examples if len(e.passage.token_ids) >= span]
    if len(usable) < num_windows:
        raise TrainingError(
            f"There are {len(usable)} passages of at least {span} tokens; training takes "
            f"{num_windows} at a time. Give it more text."
        )

    @lru_cache(maxsize=2)
    def order(epoch: int) -> npt.NDArray[np.int64]:
        return np.random.default_rng([seed, 0, epoch]).permutation(len(usable))

    for step in itertools.count(first_step):
        rng = np.random.default_rng([seed, 1, step])
        places = range(step * num_windows, (step + 1) * num_windows)
        chosen = [usable[order(place // len(usable))[place % len(usable)]] for place in places]
        starts = [int(rng.integers(len(e.passage.token_ids) - span + 1)) for e in chosen]
        yield _batch(chosen, starts, num_anchors, span)


def _batch(
    examples: Sequence[Example], starts: Sequence[int], num_anchors: int, span: int
) -> Batch:
    """The windows of `span` tokens that begin at `starts`."""
    windows = list(zip(examples, starts, strict=True))

    def stacked(parts: list[npt.NDArray[Any]], dtype: mx.Dtype) -> mx.array:
        return mx.array(np.stack(parts)).astype(dtype)

    return Batch(
        stacked([e.passage.token_ids[s + 1 : s + span] for e, s in windows], mx.int32),
        stacked([e.passage.hidden[s : s + num_anchors] for e, s in windows], mx.float32),
        stacked([e.top_columns[s + 1 : s + span] for e, s in windows], mx.int32),
        stacked([e.top_probs[s + 1 : s + span] for e, s in windows], mx.float32),
    )
