"""Every warp once more, in plain float64 loops, as the documentation words them."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mtplx.sampling import SamplingParams

Floats = NDArray[np.float64]


def reference_warp(logits: Floats, params: SamplingParams, seen: Sequence[int]) -> Floats:
    """The distribution [V] after these tokens."""
    scores = reference_scores(logits, params, seen)
    if params.temperature == 0:
        probs = np.zeros(len(scores))
        probs[int(np.argmax(scores))] = 1
        return probs
    probs = np.exp((scores - scores.max()) / params.temperature)
    probs /= probs.sum()
    ranking = sorted(range(len(probs)), key=lambda i: (-probs[i], i))
    if params.top_k:
        probs = _keep(probs, ranking[: params.top_k])
    if params.top_p < 1:
        mass, num_kept = 0.0, 0
        while mass < params.top_p and num_kept < len(ranking):
            mass += probs[ranking[num_kept]]
            num_kept += 1
        probs = _keep(probs, ranking[:num_kept])
    return _keep(probs, [i for i in ranking if probs[i] >= params.min_p * probs.max()])


def reference_scores(logits: Floats, params: SamplingParams, seen: Sequence[int]) -> Floats:
    """The logits [V] after bias and penalties."""
    scores = logits.copy()
    for token_id, bias in params.logit_bias.items():
        scores[token_id] += bias
    if params.penalty_window is not None:
        seen = seen[-params.penalty_window :]
    for token_id, count in Counter(seen).items():
        factor = params.repetition_penalty
        scores[token_id] *= 1 / factor if scores[token_id] > 0 else factor
        scores[token_id] -= params.presence_penalty + count * params.frequency_penalty
    return scores


def is_clear_cut(logits: Floats, params: SamplingParams, seen: Sequence[int]) -> bool:
    """Whether float32 cannot decide otherwise than float64: nothing nearly ties or nearly fits."""
    if params.temperature == 0:
        unfiltered = reference_scores(logits, params, seen)
        return not _near_ties(unfiltered)
    scores = reference_scores(logits, params, seen)
    probs = np.exp((scores - scores.max()) / params.temperature)
    if _near_ties(scores) or np.any(np.abs(probs - params.min_p) < 1e-5):
        return False
    ranked = np.sort(probs)[::-1][: params.top_k or None]
    return not np.any(np.abs(np.cumsum(ranked) / ranked.sum() - params.top_p) < 1e-5)


def _near_ties(scores: Floats) -> bool:
    gaps = np.diff(np.sort(scores[np.isfinite(scores)]))
    return bool(np.any((gaps > 0) & (gaps < 1e-4)))


def _keep(probs: Floats, kept: Sequence[int]) -> Floats:
    left = np.zeros(len(probs))
    left[list(kept)] = probs[list(kept)]
    total = math.fsum(left)
    return left / total
