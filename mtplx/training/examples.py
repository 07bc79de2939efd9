"""Passages as training examples: a shortlist, the trunk's probabilities on it, random windows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mtplx.models.head import Shortlist
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
    """B windows of T anchors, unrolled `depth` deep: all arrays have T + depth columns or fewer.

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
    """The trunk's distribution over the shortlist, from the passage's hidden states."""
    logits = np.array(shortlist.logits(mx.array(passage.hidden).astype(mx.float32)))
    count = min(NUM_TOP, logits.shape[1])
    columns = np.argpartition(logits, -count, axis=-1)[:, -count:]
    top = np.take_along_axis(logits, columns, axis=-1)
    weights = np.exp(top - top.max(axis=-1, keepdims=True))
    probs = weights / weights.sum(axis=-1, keepdims=True)
    return Example(passage, columns.astype(np.int32), probs.astype(np.float16))


def batches(
    examples: Sequence[Example], *, num_windows: int, num_anchors: int, depth: int, seed: int
) -> Iterator[Batch]:
    """Random windows, passages visited in shuffled order, endlessly."""
    rng = np.random.default_rng(seed)
    span = num_anchors + depth
    usable = [e for e in examples if len(e.passage.token_ids) >= span]
    if len(usable) < num_windows:
        raise ValueError(
            f"{len(usable)} passages of at least {span} tokens; a batch takes {num_windows}"
        )
    order: list[int] = []
    while True:
        if len(order) < num_windows:
            order += rng.permutation(len(usable)).tolist()
        chosen = [usable[i] for i in order[:num_windows]]
        order = order[num_windows:]
        starts = [int(rng.integers(len(e.passage.token_ids) - span + 1)) for e in chosen]
        later = [slice(s + 1, s + span) for s in starts]
        yield Batch(
            mx.array(
                np.stack([e.passage.token_ids[c] for e, c in zip(chosen, later, strict=True)])
            ),
            mx.array(
                np.stack(
                    [
                        e.passage.hidden[s : s + num_anchors]
                        for e, s in zip(chosen, starts, strict=True)
                    ]
                )
            ).astype(mx.float32),
            mx.array(np.stack([e.top_columns[c] for e, c in zip(chosen, later, strict=True)])),
            mx.array(np.stack([e.top_probs[c] for e, c in zip(chosen, later, strict=True)])).astype(
                mx.float32
            ),
        )
