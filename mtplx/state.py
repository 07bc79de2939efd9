"""Everything that decoding moves, as one: the target's caches, the drafter, the committed tokens.

The caches hold every committed token but the last, which is *pending*: given or emitted, and not
yet passed through the target. `token_ids` is the truth: whatever an interrupted pass left in a
cache lies behind it and is dropped by the next `begin`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from mtplx.checkpoints import BEFORE_END, Checkpoint, Checkpoints
from mtplx.depth import DepthPolicy
from mtplx.errors import RollbackError
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
        self.policy: DepthPolicy | None = None  # that learns from one request to the next
        self.checkpoints = Checkpoints()
        self._keeps_every_length = all(layer.keeps_every_length for layer in self.cache)
        self._feeds_drafter = False
        self._unseen: list[mx.array] = []  # hidden rows from drafter.num_rows to the last token
        self._hidden: mx.array | None = None  # [T, D] of the last pass
        self._num_passed = 0  # tokens of the last pass, until they are kept

    @property
    def num_bytes(self) -> int:
        """Bytes that the caches and checkpoints hold."""
        drafter_bytes = self.drafter.num_bytes if self.drafter is not None else 0
        layer_bytes = sum(layer.num_bytes for layer in self.cache)
        return layer_bytes + drafter_bytes + self.checkpoints.num_bytes

    @property
    def num_replays(self) -> int:
        """How often a layer had to read weights again to undo the tail of a pass."""
        if self._keeps_every_length:
            return 0
        return sum(layer.num_replays for layer in self.cache)

    def begin(
        self, prompt_ids: Sequence[int], *, drafting: bool, progress: Progress | None = None
    ) -> int:
        """Bring the caches to all of the prompt but its last token, which is then pending.

        What they share with the prompt stays, as far as every layer can go back to it, and only the
        rest is passed. Returns how many tokens stayed. With `drafting` the drafter is fed along;
        where it fell behind because an earlier request went without, those tokens are passed again.
        progress: called between two passes; what it raises ends the reading there, and the caches
            hold what was passed.
        """
        self.num_begun += 1
        self._settle()
        num_kept = self._go_back_to(prompt_ids, drafting=drafting and self.drafter is not None)
        start, last = num_kept, len(prompt_ids) - 1
        for end in self._pass_ends(num_kept, last):
            if progress is not None and start > num_kept:
                progress(start, len(prompt_ids))
            self._read(list(prompt_ids[start:end]))
            if end >= last - BEFORE_END:
                self._mark()
            start = end
        return num_kept

    def _pass_ends(self, start: int, last: int) -> list[int]:
        """Where the passes over a prompt end, the last of them before its last token."""
        ends = list(range(start + PREFILL_ROWS, last, PREFILL_ROWS))
        if not self._keeps_every_length and last - BEFORE_END > start:
            ends = sorted({*ends, last - BEFORE_END})
        return [*ends, last] if last > start else []

    def _read(self, token_ids: list[int]) -> None:
        """Pass tokens of a prompt, and commit them."""
        hidden = self.target.forward(mx.array(token_ids), self.cache)
        self._commit(len(token_ids), len(token_ids))
        self.token_ids += token_ids
        if self._feeds_drafter:
            self._unseen.append(self._staged(hidden, self.target.normalise(hidden)))
            self._catch_up()
        mx.eval([layer.state for layer in self.cache], self._unseen)

    def _settle(self) -> None:
        """Drop what an interrupted pass left, and mark where the last request ended."""
        length = len(self.token_ids)
        self._num_passed = 0
        if self._keeps_every_length or not all(layer.reaches(length) for layer in self.cache):
            return
        for layer in self.cache:
            layer.rewind(length)
        if self.drafter is not None:
            self.drafter.rewind(self.drafter.reachable(max(length - 1, 0)))
        self._mark()

    def _mark(self) -> None:
        """Make this a place that a later prompt can go on from, if that takes a checkpoint."""
        if self._keeps_every_length or not self.token_ids:
            return
        checkpoint = self.checkpoint()
        mx.eval(checkpoint.arrays())
        self.checkpoints.add(checkpoint)

    def checkpoint(self, *, whole: bool = False) -> Checkpoint:
        """The state as it stands between two rounds; `whole` as of LayerCache.snapshot."""
        layers = tuple(layer.snapshot(whole=whole) for layer in self.cache)
        if self.drafter is None:
            return Checkpoint(len(self.token_ids), layers)
        drafter, num_rows = self.drafter.snapshot(whole=whole), self.drafter.num_rows
        num_unseen = sum(rows.shape[0] for rows in self._unseen)
        is_fed = 0 < num_unseen == len(self.token_ids) - num_rows
        unseen = mx.concatenate(self._unseen) if is_fed else None
        return Checkpoint(len(self.token_ids), layers, drafter, num_rows, unseen)

    def _go_back_to(self, prompt_ids: Sequence[int], *, drafting: bool) -> int:
        shared, limit = 0, min(len(self.token_ids), len(prompt_ids) - 1)
        while shared < limit and self.token_ids[shared] == prompt_ids[shared]:
            shared += 1
        length, rows = shared, 0
        if self.drafter is not None:
            # Its row i was made with token i + 1, which must be shared too.
            rows = self.drafter.reachable(max(shared - 1, 0))
            length = min(shared, rows) if drafting else shared
        if not all(layer.reaches(length) for layer in self.cache):
            length, rows = 0, 0
        checkpoint = self.checkpoints.longest(shared, fed=drafting)
        if checkpoint is not None and checkpoint.length <= length:
            checkpoint = None
        # First, so that an interrupt on the way leaves no cache behind what it says.
        del self.token_ids[length if checkpoint is None else checkpoint.length :]
        self._feeds_drafter, self._unseen, self._hidden = drafting, [], None
        if checkpoint is not None:
            self._restore(checkpoint)
        else:
            for layer in self.cache:
                layer.rewind(length)
            if self.drafter is not None:
                self.drafter.rewind(rows)
        rows = 0 if self.drafter is None else self.drafter.num_rows
        self.checkpoints.forget_behind(len(self.token_ids), rows)
        return len(self.token_ids)

    def _restore(self, checkpoint: Checkpoint) -> None:
        for layer, snapshot in zip(self.cache, checkpoint.layers, strict=True):
            layer.restore(snapshot)
        if self.drafter is not None and checkpoint.drafter is not None:
            self.drafter.restore(checkpoint.drafter)
        if self._feeds_drafter and checkpoint.unseen is not None:
            self._unseen = [checkpoint.unseen]

    def adopt(
        self, token_ids: list[int], checkpoint: Checkpoint, checkpoints: Iterable[Checkpoint] = ()
    ) -> None:
        """Go to where another state of the same model stood, in place of all that is held.

        checkpoint: that state after these tokens, whole. checkpoints: those that it had.
        """
        self.token_ids = []
        self._feeds_drafter = checkpoint.unseen is not None
        self._restore(checkpoint)
        self.checkpoints = Checkpoints()
        for other in checkpoints:
            self.checkpoints.add(other)
        self.token_ids = token_ids

    def forward(self, block: mx.array) -> Pass:
        """Pass the pending token and what is proposed after it: block [T] int32."""
        hidden = self.target.forward(block, self.cache)
        normed = self.target.normalise(hidden)
        self._hidden, self._num_passed = self._staged(hidden, normed), block.shape[0]
        return Pass(self.target.logits(normed), normed)

    def _staged(self, hidden: mx.array, normed: mx.array) -> mx.array:
        """The one of the two that the drafter is fed."""
        takes_raw = self.drafter is not None and self.drafter.hidden_stage == "before_norm"
        return hidden if takes_raw else normed

    def keep(self, token_ids: Sequence[int]) -> None:
        """Commit these first tokens of the last pass's block; the rest of it never happened.

        Raises RollbackError, naming the layer, where one did not record exactly that pass; no layer
        has moved then.
        """
        self._commit(self._num_passed, len(token_ids))
        self._num_passed = 0
        if self.drafter is not None:
            self.drafter.keep()
        self.token_ids += token_ids
        if self._feeds_drafter and token_ids:
            assert self._hidden is not None
            self._unseen.append(self._hidden[: len(token_ids)])
            self._catch_up(MAX_UNSEEN_ROWS)

    def _commit(self, num_passed: int, num_tokens: int) -> None:
        """Keep the first tokens of a pass in every layer, once all have said that they can."""
        if num_tokens > num_passed:
            raise RollbackError(f"Asked to keep {num_tokens} tokens of a pass of {num_passed}.")
        start = len(self.token_ids)
        for layer in self.cache:
            layer.check(start, num_passed)
        for layer in self.cache:
            layer.keep(num_tokens)

    def draft_input(self, pending: int) -> DraftInput | None:
        """What the drafter has not seen, up to the pending token; None before the first row."""
        if not self._unseen:
            return None
        assert self.drafter is not None
        after = [*self.token_ids[self.drafter.num_rows + 1 :], pending]
        rows = DraftInput(mx.concatenate(self._unseen), mx.array(after))
        self._unseen = []
        return rows

    def catch_up(self) -> None:
        """Feed the drafter what waits for it, so that the next request need not pass it again."""
        if self._feeds_drafter and self._unseen:
            self._catch_up()

    def _catch_up(self, allowed: int = 0) -> None:
        """Feed the drafter the rows whose next token is known, if more than `allowed` wait."""
        assert self.drafter is not None
        after = self.token_ids[self.drafter.num_rows + 1 :]
        if len(after) <= allowed:
            return
        hidden = mx.concatenate(self._unseen)
        self.drafter.observe(DraftInput(hidden[: len(after)], mx.array(after)))
        self._unseen = [hidden[len(after) :]]
