"""Held-out acceptance of a head, from text the trunk wrote: no decoding needed.

With x drawn by the trunk, prod min(1, q_i(x_i) / p_i(x_i)) has the mean P(the first j drafts are
all accepted) for drafts drawn from q; at temperature 0 it is whether every argmax agrees.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mtplx.models.head import HeadWeights
from mtplx.models.llama import LlamaTarget
from mtplx.models.shortlist import Shortlist
from mtplx.training.own_text import Passage
from mtplx.training.unrolled import unroll

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply and what the trunk says of it, at the temperature that it was written at.

    first: the last row of its prompt. best: [N - first] int32, the likeliest token after each row
    from there on. log_total: [N - first] float32, the logarithm of the sum of exp(logits /
    temperature) over the vocabulary; not used at temperature 0.
    """

    passage: Passage
    first: int
    best: Ints
    log_total: Floats


HeldOut = dict[tuple[str, float], list[Reply]]
"""Class and temperature -> replies."""


@dataclass(frozen=True, slots=True)
class Measured:
    """per_position: P(draft j accepted), true tokens before it; tokens_per_round: E(k), k = 1…

    NaN where there was no anchor to measure at.
    """

    per_position: tuple[float, ...]
    tokens_per_round: tuple[float, ...]
    num_anchors: int


def judged(target: LlamaTarget, passage: Passage, first: int, temperature: float) -> Reply:
    """A reply with what does not depend on the head, which is most of the work of measuring."""
    logits = target.logits(mx.array(passage.hidden[first:]).astype(mx.float32))
    best = mx.argmax(logits, axis=-1).astype(mx.int32)
    log_total = mx.logsumexp(logits / (temperature or 1.0), axis=-1)
    mx.eval(best, log_total)
    return Reply(passage, first, np.array(best), np.array(log_total))


def measure(
    target: LlamaTarget,
    head: HeadWeights,
    shortlist: Shortlist,
    passages: Sequence[tuple[Passage, int]],
    temperature: float,
    depth: int = 4,
    shift: int = 0,
) -> Measured:
    """Acceptance on passages written at `temperature`; drafting starts at each one's given row.

    shift: compare with the trunk's distribution that many positions late; a control, near zero.
    """
    replies = [judged(target, passage, first, temperature) for passage, first in passages]
    return measure_judged(target, head, shortlist, replies, temperature, depth, shift)


def measure_judged(
    target: LlamaTarget,
    head: HeadWeights,
    shortlist: Shortlist,
    replies: Sequence[Reply],
    temperature: float,
    depth: int = 4,
    shift: int = 0,
) -> Measured:
    """As `measure`, for replies that were judged before, at the same temperature."""
    found = [
        _overlaps(target, head, shortlist, reply, temperature, depth, shift) for reply in replies
    ]
    each = np.concatenate([np.zeros((2, depth, 0)), *found], axis=-1)
    num_anchors = each.shape[-1]
    if num_anchors == 0:
        nothing = (float("nan"),) * depth
        return Measured(nothing, nothing, 0)
    alone, ratio = each
    chains = np.cumprod(ratio, axis=0).mean(axis=-1)
    return Measured(
        tuple(alone.mean(axis=-1).tolist()), tuple((1 + np.cumsum(chains)).tolist()), num_anchors
    )


def _overlaps(
    target: LlamaTarget,
    head: HeadWeights,
    shortlist: Shortlist,
    reply: Reply,
    temperature: float,
    depth: int,
    shift: int,
) -> Floats:
    """[2, depth, anchors]: acceptance on average over drafts, and min(1, q/p) at the true token."""
    passage, first = reply.passage, reply.first
    num_anchors = len(passage.token_ids) - 1 - depth - shift
    rows = max(0, num_anchors - first)
    if rows == 0:
        return np.zeros((2, depth, 0))
    embedding = target.embedding.rows(mx.array(passage.token_ids))[None, 1:]
    hidden = mx.array(passage.hidden).astype(mx.float32)
    states = unroll(target.dims, head, embedding, hidden[None, :num_anchors], depth)
    drafts = shortlist.logits(mx.concatenate([g[0, first:] for g in states]))
    q_logits = np.array(drafts).reshape(depth, rows, -1)
    ids = np.array(shortlist.ids)
    spans = [slice(1 + step + shift, 1 + step + shift + rows) for step in range(depth)]
    if temperature == 0:
        agree = [reply.best[s] == ids[q.argmax(-1)] for s, q in zip(spans, q_logits, strict=True)]
        return np.array([agree, agree], dtype=np.float64)
    p_logits = np.array(shortlist.logits(hidden[first:])) / temperature
    p = np.exp(p_logits - reply.log_total[:, None])
    drawn = _columns(ids, target.vocab_size)[passage.token_ids[first:]]
    pairs = [
        _overlap(p[s], _softmax(q / temperature), drawn[s.start + 1 : s.stop + 1])
        for s, q in zip(spans, q_logits, strict=True)
    ]
    return np.array(pairs).swapaxes(0, 1)


def _overlap(p: Floats, q: Floats, drawn: Ints) -> tuple[Floats, Floats]:
    """p, q: [rows, S] on the shortlist. drawn: columns, -1 for a token that is not on it."""
    at = np.arange(len(drawn)), np.maximum(drawn, 0)
    ratio = np.minimum(1.0, q[at] / np.maximum(p[at], 1e-30))
    return np.minimum(p, q).sum(-1), np.where(drawn < 0, 0.0, ratio)


def _columns(ids: Ints, vocab_size: int) -> Ints:
    """[V]: where in the shortlist a token is, or -1."""
    columns = np.full(vocab_size, -1, np.int32)
    columns[ids] = np.arange(len(ids), dtype=np.int32)
    return columns


def _softmax(x: Floats) -> Floats:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))
