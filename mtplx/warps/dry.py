"""DRY, don't repeat yourself: make a token less likely that would go on with an earlier passage."""

import math

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mtplx.params import SamplingParams
from mtplx.warps.history import History

_MOST = (
    1e9  # no penalty is more: such a token is as good as forbidden, and float32 far from its end
)
Ints = NDArray[np.int64]


def without_repetition(scores: mx.array, params: SamplingParams, history: History) -> mx.array:
    """Scores [R, V] less what each token would repeat of what its own row has seen.

    Searched anew every time, the committed part on the host and the draft on the device.
    """
    if not params.avoids_repetition:
        return scores
    num_rows, vocab_size = scores.shape
    draft, ahead = history.drafted(), history.num_ahead(num_rows)
    num_tokens = len(history.token_ids) + len(draft)
    if num_tokens <= params.dry_allowed_length:
        return scores
    reach = num_tokens if params.dry_window is None else min(params.dry_window, num_tokens)
    starts = np.maximum(len(history.token_ids) - reach + ahead, 0)  # [R], where each row begins
    first = min(starts[0], len(history.token_ids))
    committed = np.asarray(history.token_ids[first:], dtype=np.int64)
    assert committed.max(initial=0) < vocab_size, "a token outside the vocabulary"
    penalties = _penalties(params, num_tokens)
    tokens = mx.concatenate([mx.array(committed, dtype=mx.int32), draft])  # [N]
    breaks = _breaks(committed, draft, params)  # [N]
    lengths = _repeated(committed, draft, breaks, params, longest=len(penalties) - 1)
    rows = mx.stack([lengths[i] for i in ahead.tolist()])  # [R, N]
    # What a row does not see any more is not part of a passage either.
    rows = mx.minimum(rows, mx.arange(1, len(tokens) + 1) - mx.array(starts - first)[:, None])
    each = mx.take(mx.array(penalties), mx.maximum(rows, 0))[:, :-1]  # of the token that follows
    each = mx.where(breaks[1:], 0, each)
    worst = mx.zeros_like(scores).at[mx.arange(num_rows)[:, None], tokens[1:]].maximum(each)
    return scores - worst


def _penalties(params: SamplingParams, num_tokens: int) -> NDArray[np.float32]:
    """[L + 1], what a repetition of 0, 1, … L tokens costs; a longer one costs what L do."""
    base, multiplier = params.dry_base, params.dry_multiplier
    growth = math.log(base)
    room = max(math.log(_MOST) - math.log(multiplier), 0)
    rising = math.ceil(room / growth) if growth > 0 else 0
    lengths = np.arange(min(params.dry_allowed_length + rising, num_tokens) + 1)
    excess = np.minimum(lengths - params.dry_allowed_length, rising)
    costs = np.minimum(multiplier * np.exp(excess * growth), _MOST)
    return np.where(excess >= 0, costs, 0).astype(np.float32)


def _breaks(committed: Ints, draft: mx.array, params: SamplingParams) -> mx.array:
    """[N] bool, which of the tokens no passage runs over."""
    ids = np.asarray(params.dry_breaker_ids, dtype=np.int64)
    drafted = mx.any(draft[:, None] == mx.array(ids, dtype=mx.int32), axis=1)
    return mx.concatenate([mx.array(np.isin(committed, ids)), drafted])


def _repeated(
    committed: Ints, draft: mx.array, breaks: mx.array, params: SamplingParams, longest: int
) -> list[mx.array]:
    """For 0 to K drafted tokens in sight: how many tokens up to each place, that one included,
    are the last ones once more, [N] int32, at most `longest`."""
    tokens = mx.concatenate([mx.array(committed, dtype=mx.int32), draft])
    lengths = mx.pad(mx.array(_suffixes(committed, params, longest)), (0, len(draft)))
    places, found = mx.arange(len(tokens)), [lengths]
    for last in range(len(committed), len(tokens)):
        longer = mx.minimum(mx.pad(lengths[:-1], (1, 0)) + 1, longest)
        same = (tokens == tokens[last]) & (places < last) & ~breaks[last]
        lengths = mx.where(same, longer, 0)
        found.append(lengths)
    return found


def _suffixes(tokens: Ints, params: SamplingParams, longest: int) -> NDArray[np.int32]:
    """[N], how many tokens up to each place are the last ones once more; 0 at the last place."""
    lengths = np.zeros(len(tokens), dtype=np.int32)
    breakers, places = frozenset(params.dry_breaker_ids), np.arange(len(tokens) - 1)
    for length in range(longest):
        places = places[places >= length]
        if not places.size or int(token := tokens[-1 - length]) in breakers:
            break
        places = places[tokens[places - length] == token]
        lengths[places] = length + 1
    return lengths
