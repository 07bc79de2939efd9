"""The part of the vocabulary that drafts are taken from.

Reading all of lm_head would cost more than the rest of a head. Restricting q to part of the
vocabulary stays exact, because the residual is over all of it (FR-Spec, arXiv 2502.14856).
"""

from collections.abc import Iterable
from dataclasses import dataclass

import mlx.core as mx

from mtplx.models.matrix import Matrix

NUM_FREQUENT = 32_768
LARGE_VOCABULARY = 2 * NUM_FREQUENT  # below it, reading all of lm_head costs a draft little


@dataclass(frozen=True, slots=True)
class Shortlist:
    """The rows of lm_head that drafts are taken from."""

    ids: mx.array  # [S] int32, ascending
    weight: mx.array  # [S, D]

    def logits(self, g: mx.array) -> mx.array:
        """g [T, D] -> [T, S]."""
        return g @ self.weight.T


def make_shortlist(lm_head: Matrix, ids: mx.array) -> Shortlist:
    """The rows `ids` [S] of lm_head, dense."""
    return _evaluated(Shortlist(ids, lm_head.rows(ids)))


def frequent_ids(vocab_size: int, special_ids: Iterable[int]) -> mx.array | None:
    """A shortlist for a head of whose use nothing is known; None for a vocabulary that is small.

    Byte-pair vocabularies are learnt by joining the most frequent pair first, so low ids are the
    frequent ones. special_ids: tokens that steer, which stand at the end and yet are frequent.
    """
    if vocab_size <= LARGE_VOCABULARY:
        return None
    extra = {id_ for id_ in special_ids if NUM_FREQUENT <= id_ < vocab_size}
    return mx.array([*range(NUM_FREQUENT), *sorted(extra)], dtype=mx.int32)


def widen(shortlist: Shortlist, lm_head: Matrix, more: list[int]) -> Shortlist:
    """The shortlist with further token ids, in practice those of the prompt."""
    missing = sorted(set(more) - set(shortlist.ids.tolist()))  # type: ignore[arg-type]
    if not missing:
        return shortlist
    extra = mx.array(missing, dtype=mx.int32)
    weight = lm_head.rows(extra).astype(shortlist.weight.dtype)
    return _evaluated(
        Shortlist(
            mx.concatenate([shortlist.ids, extra]), mx.concatenate([shortlist.weight, weight])
        )
    )


def _evaluated(shortlist: Shortlist) -> Shortlist:
    # An array that is not evaluated can only be used in the thread that made it.
    mx.eval(shortlist.ids, shortlist.weight)
    return shortlist
