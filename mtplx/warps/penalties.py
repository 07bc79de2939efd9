"""Penalties on tokens that were seen, each row counting after its own history."""

import mlx.core as mx
import numpy as np

from mtplx.params import SamplingParams
from mtplx.warps.history import History

_MOST = 3e38  # float32 ends just behind it; a factor may carry a finite logit no further


def penalised(scores: mx.array, params: SamplingParams, history: History) -> mx.array:
    """Scores [R, V] after repetition, presence and frequency penalty."""
    if not params.penalises:
        return scores
    ids, counts = seen(history, params.penalty_window, *scores.shape)  # [S], [R, S]
    ids = mx.broadcast_to(ids, counts.shape)
    before = mx.take_along_axis(scores, ids, axis=-1)
    factor = params.repetition_penalty
    after = mx.where(before > 0, before / factor, before * factor)
    after = mx.where(mx.isfinite(before), mx.clip(after, -_MOST, _MOST), after)
    after = after - params.presence_penalty - params.frequency_penalty * counts
    return mx.put_along_axis(scores, ids, mx.where(counts > 0, after, before), axis=-1)


def seen(
    history: History, window: int | None, num_rows: int, vocab_size: int
) -> tuple[mx.array, mx.array]:
    """Ids [S] that rows have seen, and how often each row has seen each of them, [R, S] float32.

    Counted anew every time: there is no state that a rejected draft could leave behind. An id may
    stand in several columns, each with its whole count.
    """
    draft, ahead = history.drafted(), history.num_ahead(num_rows)
    num_committed = len(history.token_ids)
    everything = num_committed + len(draft)
    reach = everything if window is None else min(window, everything)
    starts = np.clip(num_committed - reach + ahead, 0, num_committed)  # of the committed part
    committed = np.asarray(history.token_ids[starts[0] :], dtype=np.int64)
    counts = np.bincount(committed)
    assert counts.size <= vocab_size, "a token outside the vocabulary"  # would write out of bounds
    unique = np.flatnonzero(counts)
    rows = np.tile(counts[unique].astype(np.float32), (num_rows, 1))
    for row, start in zip(rows, starts - starts[0], strict=True):
        np.subtract.at(row, np.searchsorted(unique, committed[:start]), 1)
    order = np.arange(len(draft))
    in_sight = (order < ahead[:, None]) & (order >= ahead[:, None] - reach)  # [R, K]

    ids = mx.concatenate([mx.array(unique, dtype=mx.int32), draft])  # [S]
    same = (draft[:, None] == ids).astype(mx.float32)  # [K, S]
    from_committed = mx.array(rows)  # [R, S - K]
    for_draft = mx.sum(from_committed[:, None] * same[:, : unique.size], axis=-1)  # [R, K]
    from_draft = mx.sum(mx.array(in_sight)[..., None] * same, axis=1)  # [R, S]
    return ids, mx.concatenate([from_committed, for_draft], axis=-1) + from_draft
