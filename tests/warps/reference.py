"""Every warp once more in float64, token by token and place by place, as it is documented."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mtplx.params import SamplingParams

Floats = NDArray[np.float64]


def expected_probs(
    logits: Floats, params: SamplingParams, seen: Sequence[int], gate: float = 0.0
) -> Floats:
    """The distribution [V] after these tokens; gate decides on XTC."""
    scores = expected_scores(logits, params, seen)
    if params.temperature == 0:
        return only(np.ones(len(scores)), [int(np.argmax(scores))])
    probs = np.exp((scores - scores.max()) / params.temperature)
    probs = normalised(probs)
    for kept in (top_k, top_p, min_p, typical_p):
        probs = normalised(kept(probs, params))
    return normalised(xtc(probs, params)) if gate < params.xtc_probability else probs


def expected_scores(logits: Floats, params: SamplingParams, seen: Sequence[int]) -> Floats:
    """The logits [V] before the temperature, but for processors."""
    scores = logits.copy()
    for token_id, bias in params.logit_bias.items():
        scores[token_id] += bias
    if params.allowed_ids is not None:
        for token_id in set(range(len(scores))) - set(params.allowed_ids):
            scores[token_id] = -math.inf
    counted = seen if params.penalty_window is None else seen[-params.penalty_window :]
    for token_id, count in Counter(counted).items():
        factor = params.repetition_penalty
        scores[token_id] *= 1 / factor if scores[token_id] > 0 else factor
        scores[token_id] -= params.presence_penalty + count * params.frequency_penalty
    if params.dry_multiplier > 0:
        for token_id in range(len(scores)):
            scores[token_id] -= dry_penalty(token_id, params, seen)
    return scores


def dry_penalty(token_id: int, params: SamplingParams, seen: Sequence[int]) -> float:
    """What DRY subtracts from a token after these."""
    text = list(seen if params.dry_window is None else seen[-params.dry_window :])
    breakers = params.dry_breaker_ids
    if token_id in breakers:
        return 0.0
    longest = 0
    for place in range(len(text)):
        if text[place] != token_id:
            continue
        length = 0
        while length < place and text[place - 1 - length] == text[-1 - length] not in breakers:
            length += 1
        longest = max(longest, length)
    excess = longest - params.dry_allowed_length
    if excess < 0:
        return 0.0
    grown = excess * math.log(params.dry_base) + math.log(params.dry_multiplier)
    return min(math.exp(min(grown, 700)), 1e9)


def top_k(probs: Floats, params: SamplingParams) -> Floats:
    return only(probs, ranking(probs)[: params.top_k]) if params.top_k else probs


def top_p(probs: Floats, params: SamplingParams) -> Floats:
    return prefix(probs, ranking(probs), params.top_p) if params.top_p < 1 else probs


def min_p(probs: Floats, params: SamplingParams) -> Floats:
    return only(probs, np.flatnonzero(probs >= params.min_p * probs.max()))


def typical_p(probs: Floats, params: SamplingParams) -> Floats:
    if params.typical_p >= 1:
        return probs
    distances = surprise_distances(probs)
    order = sorted(np.flatnonzero(probs).tolist(), key=lambda i: (distances[i], i))
    return prefix(probs, order, params.typical_p)


def surprise_distances(probs: Floats) -> Floats:
    """How far each token's surprise [V] is from the entropy."""
    with np.errstate(divide="ignore"):
        surprises = -np.log(probs)
    possible = probs > 0
    entropy = math.fsum(probs[possible] * surprises[possible])
    return np.abs(surprises - entropy)


def xtc(probs: Floats, params: SamplingParams) -> Floats:
    probable = [i for i in ranking(probs) if probs[i] >= params.xtc_threshold]
    return only(probs, sorted(set(range(len(probs))) - set(probable[:-1])))


def ranking(probs: Floats) -> list[int]:
    """The possible tokens, best first and equal ones by id."""
    return sorted(np.flatnonzero(probs).tolist(), key=lambda i: (-probs[i], i))


def prefix(probs: Floats, order: Sequence[int], mass: float) -> Floats:
    """The first tokens in this order, no more than it takes to reach this mass."""
    reached, kept = 0.0, 0
    while reached < mass and kept < len(order):
        reached += probs[order[kept]]
        kept += 1
    return only(probs, order[:kept])


def only(probs: Floats, kept: Sequence[int] | NDArray[np.int64]) -> Floats:
    left = np.zeros(len(probs))
    left[list(kept)] = probs[list(kept)]
    return left


def normalised(probs: Floats) -> Floats:
    return probs / math.fsum(probs)


def is_clear_cut(
    logits: Floats, params: SamplingParams, seen: Sequence[int], margin: float = 1e-5
) -> bool:
    """Whether no decision of any warp is so close that float32 could take it otherwise."""
    scores = expected_scores(logits, params, seen)
    if _nearly(scores, 1e-4):
        return False
    if params.temperature == 0:
        return True
    probs = normalised(np.exp((scores - scores.max()) / params.temperature))
    probs = normalised(top_k(probs, params))
    if params.top_p < 1 and _close(np.cumsum(-np.sort(-probs)), params.top_p, margin):
        return False
    probs = normalised(top_p(probs, params))
    if _close(probs / probs.max(), params.min_p, margin):
        return False
    probs = normalised(min_p(probs, params))
    if params.typical_p < 1:
        distances = surprise_distances(probs)
        if _nearly(distances[probs > 0], margin):
            return False
        order = np.argsort(distances, kind="stable")
        if _close(np.cumsum(probs[order]), params.typical_p, margin):
            return False
        probs = normalised(typical_p(probs, params))
    return not (params.xtc_probability > 0 and _close(probs, params.xtc_threshold, margin))


def _close(values: Floats, edge: float, margin: float) -> bool:
    return bool(np.any(np.abs(values - edge) < margin))


def _nearly(values: Floats, margin: float) -> bool:
    """Whether two differ by next to nothing, but not by nothing."""
    gaps = np.diff(np.sort(values[np.isfinite(values)]))
    return bool(np.any((gaps > 0) & (gaps < margin)))
