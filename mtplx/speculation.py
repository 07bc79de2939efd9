"""What the decode loop, the models and the laws share: records and protocols, no behaviour.

Words: the *target* is the model whose distribution `p` is kept; the *draft* comes from a
*drafter* with distribution `q`. A *block* is the pending token followed by the draft; one
target pass over it gives a row of logits per token. *Accepted* draft tokens are a prefix of
the draft, followed by one *recovered* token (after a rejection) or *bonus* token (after none).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import mlx.core as mx

HiddenStage = Literal["before_norm", "after_norm"]
"""On which side of the target's final norm a hidden state was taken."""


@dataclass(frozen=True, slots=True)
class Draft:
    """K proposed tokens and the distributions they were drawn from.

    token_ids: [K] int32.
    probs: [J, S] float32, the q that each of the J drawn tokens was *actually* drawn from, in
        order; None when every position is one-hot (a greedy head or a lookup), which is then what
        the law uses.
    support: [S] int32, the vocabulary ids of the columns of `probs`; None when S is the whole
        vocabulary in order. Outside the support q is zero.
    sampled: the positions that the rows of `probs` belong to, ascending; every other position is
        one-hot. None where all K have a row.
    """

    token_ids: mx.array
    probs: mx.array | None = None
    support: mx.array | None = None
    sampled: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return int(self.token_ids.shape[0])


@dataclass(frozen=True, slots=True)
class DraftInput:
    """Committed rows the drafter has not seen: hidden state i and the token that follows it.

    hidden: [n, D], the target's hidden state at n consecutive committed positions, of the stage
        that the drafter asks for.
    token_ids: [n] int32, the token after each of them; the last is the pending token.
    """

    hidden: mx.array
    token_ids: mx.array


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What a law kept of a draft of K tokens. Everything is lazy and lives on the device.

    num_accepted: [] int32, length of the accepted prefix, 0..K.
    token_ids: [K + 1] int32: the draft up to `num_accepted`, then the recovered or bonus token;
        entries behind it have no meaning.
    num_underflows: [] int32, residuals that had no mass left and fell back to p.
    """

    num_accepted: mx.array
    token_ids: mx.array
    num_underflows: mx.array


@dataclass(frozen=True, slots=True)
class Uniforms:
    """The random numbers of one round, each in [0, 1) and keyed by absolute position.

    accept: [K] float32, one test per draft position.
    choose: [K + 1, 2] float32, the draw at each position if it turns out to be recovered or
        bonus: the first number picks a segment of the vocabulary, the second a token within it.
    noise: [K + 1, 2] uint32, the key of each position's noise; only the coupled law needs it.
    """

    accept: mx.array
    choose: mx.array
    noise: mx.array | None = None


DrawDraft = Callable[[mx.array, int], tuple[mx.array, mx.array | None] | None]
"""(draft logits [1, S], index in the draft) -> the column drawn [1] int32, and the q [1, S] it was
drawn from, None where q is one-hot. None in place of both ends the draft before this token."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state as it stood at some moment, of a layer or of a drafter, to come back to or to save.

    The arrays are references: whoever goes on from there replaces them and changes none.
    """

    numbers: tuple[int, ...]
    arrays: tuple[mx.array, ...]


class LayerCache(Protocol):
    """State of one layer that can undo the tail of its last pass."""

    @property
    def offset(self) -> int:
        """Tokens held."""

    @property
    def keeps_every_length(self) -> bool:
        """Whether it can go back to any length, at any time; else that takes snapshots."""

    @property
    def num_replays(self) -> int:
        """How often undoing a pass read weights again."""

    def check(self, start: int, num_rows: int) -> None:
        """Raise RollbackError, naming the layer, unless the last pass took exactly `num_rows`
        tokens behind the first `start`, and left all that `keep` needs."""

    def keep(self, num_tokens: int) -> None:
        """Of the last pass's tokens keep the first `num_tokens`; the rest never happened.

        Raises RollbackError, naming the layer, where the pass had fewer.
        """

    def reaches(self, length: int) -> bool:
        """Whether `rewind` can go back to this length. The last pass can always be undone."""

    def rewind(self, length: int) -> None:
        """Go back to the state after the first `length` tokens, to reuse a shared prompt prefix.

        Raises RollbackError, naming the layer, where it does not reach that.
        """

    def snapshot(self, *, whole: bool = False) -> Snapshot:
        """What `restore` needs to come back to this length.

        whole: for a cache that has been emptied, or another one; else what it holds counts, and
            the snapshot is void once it has gone back further.
        """

    def restore(self, snapshot: Snapshot) -> None:
        """Go to where a snapshot was taken, of this cache or of one of its kind."""

    @property
    def state(self) -> list[mx.array]:
        """The arrays it holds, for evaluation."""

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that the state holds."""


class Target(Protocol):
    """The model whose distribution is kept."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def context_length(self) -> int: ...

    def make_cache(self) -> list[LayerCache]: ...

    def forward(self, token_ids: mx.array, cache: list[LayerCache]) -> mx.array:
        """Hidden states [T, D] before the final norm, of T new tokens [T] int32."""

    def normalise(self, hidden: mx.array) -> mx.array:
        """The final norm, apart from `forward` so that heads can be fed either stage."""

    def logits(self, hidden: mx.array) -> mx.array:
        """Logits [T, V] of hidden states [T, D] that have been through the final norm."""


class Drafter(Protocol):
    """Whatever proposes tokens. Its state follows the target's committed tokens."""

    @property
    def hidden_stage(self) -> HiddenStage:
        """Which of the target's hidden states it is fed."""

    @property
    def support(self) -> mx.array | None:
        """The vocabulary ids [S] of the columns of its logits; None is the whole in order."""

    @property
    def num_rows(self) -> int:
        """Committed (hidden, next token) rows its state holds."""

    def look_back(self, window: int | None) -> None:
        """Attend to so many tokens besides the first few from now on; None is all of them.

        State that has a window of its own, or no attention, stays as it is.
        """

    def observe(self, rows: DraftInput) -> None:
        """Take committed rows into the state, as in prefill."""

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that its state holds."""

    def propose(self, rows: DraftInput, num_tokens: int, draw: DrawDraft) -> Draft:
        """Take committed rows in and draft tokens after the pending one.

        `num_tokens` of them, or as many as `draw` gave before it ended the draft.
        """

    def keep(self) -> None:
        """Forget everything proposed; committed rows stay."""

    def rewind(self, num_rows: int) -> None:
        """Go back to the first `num_rows` committed rows, a number that `reachable` gave."""

    def reachable(self, num_rows: int) -> int:
        """The most rows, at most `num_rows`, that it can go back to or has."""

    def snapshot(self, *, whole: bool = False) -> Snapshot:
        """What `restore` needs to come back to these rows; as of LayerCache."""

    def restore(self, snapshot: Snapshot) -> None:
        """Go to where a snapshot was taken."""
