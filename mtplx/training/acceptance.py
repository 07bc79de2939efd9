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

from mtplx.models.head import HeadWeights, Shortlist
from mtplx.models.llama import LlamaTarget
from mtplx.training.own_text import Passage
from mtplx.training.unrolled import unroll

HeldOut = dict[tuple[str, float], list[tuple[Passage, int]]]
"""Class and temperature -> replies, each with the last row of its prompt."""

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class Measured:
    """per_position: P(draft j accepted), true tokens before it; tokens_per_round: E(k), k = 1…"""

    per_position: tuple[float, ...]
    tokens_per_round: tuple[float, ...]
    num_anchors: int


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
    each: list[list[float]] = [[] for _ in range(depth)]
    joint: list[list[float]] = [[] for _ in range(depth)]
    for passage, first in passages:
        num_anchors = len(passage.token_ids) - depth - shift
        if num_anchors <= first:
            continue
        token_ids = mx.array(passage.token_ids)
        hidden = mx.array(passage.hidden).astype(mx.float32)
        embedding = target.embedding.rows(token_ids)[None, 1:]
        states = unroll(target.dims, head, embedding, hidden[None, :num_anchors], depth)
        logits = np.array(target.logits(hidden[first:]))
        alive = np.ones(num_anchors - first)
        for step, g in enumerate(states):
            rows = slice(1 + step + shift, 1 + step + shift + num_anchors - first)
            q_logits = np.array(shortlist.logits(g[0, first:]))
            one, chain = _overlap(
                logits[rows],
                q_logits,
                np.array(shortlist.ids),
                passage.token_ids[first:][rows.start + 1 : rows.stop + 1],
                temperature,
            )
            each[step] += one.tolist()
            alive[: len(chain)] *= chain
            alive = alive[: len(chain)]
            joint[step] += alive.tolist()
    means = [float(np.mean(j)) for j in joint]
    return Measured(
        tuple(float(np.mean(e)) for e in each),
        tuple(1 + sum(means[: k + 1]) for k in range(depth)),
        len(each[0]),
    )


def _overlap(
    p_logits: Floats, q_logits: Floats, ids: Ints, drawn: Ints, temperature: float
) -> tuple[Floats, Floats]:
    """Per row: acceptance on average over drafts, and min(1, q/p) at the token drawn from p."""
    if temperature == 0:
        match = (p_logits.argmax(-1) == ids[q_logits.argmax(-1)]).astype(float)
        return match, match[: len(drawn)]
    p, q_short = _softmax(p_logits / temperature), _softmax(q_logits / temperature)
    q = np.zeros_like(p)
    q[:, ids] = q_short
    rows = np.arange(len(drawn))
    ratio = np.minimum(1.0, q[rows, drawn] / np.maximum(p[rows, drawn], 1e-30))
    return np.minimum(p, q).sum(-1), ratio


def _softmax(x: Floats) -> Floats:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))
