"""Everything that decoding moves, as one: the target's caches, the drafter, the committed tokens.

The caches hold every committed token but the last, which is *pending*: given or emitted, and not
yet passed through the target. `token_ids` is the truth: whatever an interrupted pass left in a
cache lies behind it and is dropped by the next `begin`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from mtplx.speculation import Drafter, DraftInput, LayerCache, Target

Progress = Callable[[int, int], None]
"""(tokens of the prompt that are in the caches, tokens of the prompt)"""

PREFILL_ROWS = 512  # rows of a prefill pass
MAX_UNSEEN_ROWS = 64  # committed rows that may wait for a drafter that is not asked to draft


@dataclass(frozen=True, slots=True)
class Pass:
    """One target pass over T tokens: logits [T, V], hidden states [T, D] after the final norm."""

    logits: mx.array
    hidden: mx.array


class DecodeState:
    """The state of one stream of tokens; one decode at a time."""

    def __init__(self, target: Target, drafter: Drafter | None = None) -> None:
        self.target = target
        self.drafter = drafter
        self.cache: list[LayerCache] = target.make_cache()
        self.token_ids: list[int] = []  # committed and in the caches
        self.num_begun = 0  # requests
        self._feeds_drafter = False
        self._unseen: list[mx.array] = []  # hidden rows from drafter.num_rows to the last token
        self._hidden: mx.array | None = None  # [T, D] of the last pass

    @property
    def num_bytes(self) -> int:
        """Bytes that the caches hold."""
        drafter_bytes = self.drafter.num_bytes if self.drafter is not None else 0
        return sum(layer.num_bytes for layer in self.cache) + drafter_bytes

    def begin(
        self, prompt_ids: Sequence[int], *, drafting: bool, progress: Progress | None = None
    ) -> int:
        """Bring the caches to all of the prompt but its last token, which is then pending.

        What they share with the prompt stays, and only the rest is passed. Returns how many
        tokens stayed. With `drafting` the drafter is fed along; where it fell behind because an
        earlier request went without, those tokens are passed again.
        progress: called between two passes; what it raises ends the reading there, and the caches
            hold what was passed.
        """
        self.num_begun += 1
        num_kept = self._go_back_to(prompt_ids, drafting=drafting and self.drafter is not None)
        rest = list(prompt_ids[num_kept:-1])
        for start in range(0, len(rest), PREFILL_ROWS):
            if progress is not None and start > 0:
                progress(num_kept + start, len(prompt_ids))
            chunk = rest[start : start + PREFILL_ROWS]
            hidden = self.target.normalise(self.target.forward(mx.array(chunk), self.cache))
            self.token_ids += chunk
            if self._feeds_drafter:
                self._unseen.append(hidden)
                self._catch_up()
            mx.eval([layer.state for layer in self.cache], self._unseen)
        return num_kept

    def _go_back_to(self, prompt_ids: Sequence[int], *, drafting: bool) -> int:
        shared, limit = 0, min(len(self.token_ids), len(prompt_ids) - 1)
        while shared < limit and self.token_ids[shared] == prompt_ids[shared]:
            shared += 1
        if self.drafter is not None:
            # Its row i was made with token i + 1, which must be shared too.
            self.drafter.rewind(min(self.drafter.num_rows, max(shared - 1, 0)))
            if drafting:
                shared = min(shared, self.drafter.num_rows)
        # First, so that an interrupt on the way leaves no cache behind what it says.
        del self.token_ids[shared:]
        for layer in self.cache:
            layer.rewind(shared)
        self._feeds_drafter, self._unseen, self._hidden = drafting, [], None
        return shared

    def forward(self, block: mx.array) -> Pass:
        """Pass the pending token and what is proposed after it: block [T] int32."""
        hidden = self.target.normalise(self.target.forward(block, self.cache))
        self._hidden = hidden
        return Pass(self.target.logits(hidden), hidden)

    def keep(self, token_ids: Sequence[int]) -> None:
        """Commit these first tokens of the last pass's block; the rest of it never happened."""
        for layer in self.cache:
            layer.keep(len(token_ids))
        if self.drafter is not None:
            self.drafter.keep()
        self.token_ids += token_ids
        if self._feeds_drafter and token_ids:
            assert self._hidden is not None
            self._unseen.append(self._hidden[: len(token_ids)])
            self._catch_up(MAX_UNSEEN_ROWS)

    def draft_input(self, pending: int) -> DraftInput | None:
        """What the drafter has not seen, up to the pending token; None before the first row."""
        if not self._unseen:
            return None
        assert self.drafter is not None
        after = [*self.token_ids[self.drafter.num_rows + 1 :], pending]
        rows = DraftInput(mx.concatenate(self._unseen), mx.array(after))
        self._unseen = []
        return rows

    def _catch_up(self, allowed: int = 0) -> None:
        """Feed the drafter the rows whose next token is known, if more than `allowed` wait."""
        assert self.drafter is not None
        after = self.token_ids[self.drafter.num_rows + 1 :]
        if len(after) <= allowed:
            return
        hidden = mx.concatenate(self._unseen)
        self.drafter.observe(DraftInput(hidden[: len(after)], mx.array(after)))
        self._unseen = [hidden[len(after) :]]
