"""The part of the vocabulary that drafts are taken from.

Reading all of lm_head would cost more than the rest of a head. Restricting q to part of the
vocabulary stays exact, because the residual is over all of it (FR-Spec, arXiv 2502.14856).
"""

from collections.abc import Iterable
from dataclasses import dataclass

import mlx.core as mx

from mtplx.models.matrix import Matrix, stack

NUM_FREQUENT = 32_768
LARGE_VOCABULARY = 2 * NUM_FREQUENT  # below it, reading all of lm_head costs a draft little


@dataclass(frozen=True, slots=True)
class Shortlist:
    """The rows of lm_head that drafts are taken from."""

    ids: mx.array  # [S] int32, ascending
    matrix: Matrix  # [S, D], rows of lm_head

    @property
    def weight(self) -> mx.array:
        """[S, D], dense."""
        return self.matrix.rows(mx.arange(self.ids.size))

    def logits(self, g: mx.array) -> mx.array:
        """g [T, D] -> [T, S]."""
        return self.matrix(g)


def make_shortlist(lm_head: Matrix, ids: mx.array) -> Shortlist:
    """The rows `ids` [S] of lm_head."""
    return _evaluated(Shortlist(ids, lm_head.take(ids)))


def num_frequent(vocab_size: int) -> int:
    """How many ids such a shortlist has, but for special ones; 0 for a vocabulary that is small."""
    return NUM_FREQUENT if vocab_size > LARGE_VOCABULARY else 0


def frequent_ids(vocab_size: int, special_ids: Iterable[int]) -> mx.array | None:
    """A shortlist for a head of whose use nothing is known; None for a vocabulary that is small.

    Byte-pair vocabularies are learnt by joining the most frequent pair first, so low ids are the
    frequent ones. special_ids: tokens that steer, which stand at the end and yet are frequent.
    """
    if not num_frequent(vocab_size):
        return None
    extra = {id_ for id_ in special_ids if NUM_FREQUENT <= id_ < vocab_size}
    return mx.array([*range(NUM_FREQUENT), *sorted(extra)], dtype=mx.int32)


def widen(shortlist: Shortlist, lm_head: Matrix, more: list[int]) -> Shortlist:
    """The shortlist with further token ids, in practice those of the prompt."""
    missing = sorted(set(more) - set(shortlist.ids.tolist()))  # type: ignore[arg-type]
    if not missing:
        return shortlist
    extra = mx.array(missing, dtype=mx.int32)
    both = stack([shortlist.matrix, lm_head.take(extra)])
    return _evaluated(Shortlist(mx.concatenate([shortlist.ids, extra]), both))


def _evaluated(shortlist: Shortlist) -> Shortlist:
    # An array that is not evaluated can only be used in the thread that made it.
    mx.eval(shortlist.ids, *shortlist.matrix.arrays())
    return shortlist
