"""A drafter over any MTP head: its caches, its rows, and the chain of draft steps.

A head has one module or several. Module j takes row i together with token i + 1 + j and predicts
the token after that; its hidden row comes from module j - 1, or, in a head that is not chained,
from the trunk like everybody's. So module j lags j rows behind: its last committed row waits for
a token that is not known yet, and a draft fills it in.

A chained head goes on beyond its last module by recycling: what the module made of a row stands in
for the hidden state of the next one.
"""

from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from mtplx.cache.sinks import SinkCache
from mtplx.cache.snapshots import pack, unpack
from mtplx.models.shortlist import Shortlist
from mtplx.speculation import Draft, DraftInput, DrawDraft, HiddenStage, LayerCache, Snapshot


@dataclass(frozen=True, slots=True)
class HeadRows:
    """What a module made of T rows: logits [T, V], or [T, S], are made of `output`.

    output: [T, D]. recycled: [T, D], what the next module, or the next row, takes for hidden.
    """

    output: mx.array
    recycled: mx.array


class Head(Protocol):
    """What a head computes, apart from who drafts with it."""

    @property
    def hidden_stage(self) -> HiddenStage:
        """Which of the trunk's hidden states feeds it."""

    @property
    def chained(self) -> bool:
        """Whether a module is fed by the one before it, and the last one by itself."""

    def make_cache(self) -> list[list[LayerCache]]:
        """Empty caches of every layer of every module. They must be able to rewind the rows of
        a draft, which are added in several passes."""

    def run(
        self, module: int, token_ids: mx.array, hidden: mx.array, cache: list[LayerCache]
    ) -> HeadRows:
        """T new rows of one module: token_ids [T] int32, hidden [T, D]."""

    def logits(self, module: int, output: mx.array) -> mx.array:
        """Logits [T, V] over the whole vocabulary."""


@dataclass(frozen=True, slots=True)
class _Held:
    """Committed rows of one module, and hidden rows [W, D] whose token is not known yet."""

    num_rows: int = 0
    waiting: mx.array | None = None


class HeadDrafter:
    """Drafts with an MTP head (speculation.Drafter)."""

    def __init__(self, head: Head, shortlist: Shortlist | None = None) -> None:
        """shortlist: what drafts are taken from; None is the whole vocabulary."""
        self.head, self.shortlist = head, shortlist
        self.modules = head.make_cache()
        self._held = tuple(_Held() for _ in self.modules)

    @property
    def hidden_stage(self) -> HiddenStage:
        return self.head.hidden_stage

    @property
    def support(self) -> mx.array | None:
        return None if self.shortlist is None else self.shortlist.ids

    @property
    def num_rows(self) -> int:
        return self._held[0].num_rows

    @property
    def cache(self) -> list[LayerCache]:
        """The caches of all modules, in order."""
        return [layer for module in self.modules for layer in module]

    def look_back(self, window: int | None) -> None:
        for layer in self.cache:
            if isinstance(layer, SinkCache):
                layer.window = window

    def observe(self, rows: DraftInput) -> None:
        self._commit(rows)
        self._start()

    def propose(self, rows: DraftInput, num_tokens: int, draw: DrawDraft) -> Draft:
        last = self._commit(rows)
        if not self.head.chained:
            num_tokens = min(num_tokens, len(self.modules))
        drawn: list[mx.array] = []
        probs = []
        for step in range(num_tokens):
            if step > 0:
                last = self._step(step, drawn, last)
            choice = draw(self._logits(min(step, len(self.modules) - 1), last.output[-1:]), step)
            if choice is None:
                break
            column, q = choice
            drawn.append(column if self.shortlist is None else self.shortlist.ids[column])
            probs.append(q)
        if len(self.modules) > 1:
            self._start()
        sampled = [q for q in probs if q is not None]
        return Draft(
            token_ids=mx.concatenate(drawn) if drawn else mx.zeros(0, dtype=mx.int32),
            probs=mx.concatenate(sampled) if sampled else None,
            support=self.support if sampled else None,
        )

    def _start(self) -> None:
        # Left lazy, this work would pile up until the next draft and look like part of it.
        waiting = [held.waiting for held in self._held if held.waiting is not None]
        mx.async_eval([layer.state for layer in self.cache], waiting)

    def _logits(self, module: int, output: mx.array) -> mx.array:
        if self.shortlist is None:
            return self.head.logits(module, output)
        return self.shortlist.logits(output)

    def _commit(self, rows: DraftInput) -> HeadRows:
        """Take committed rows into every module; gives what the first one made of them."""
        num_tokens, source, made, held = rows.token_ids.shape[0], rows.hidden, [], []
        for index, before in enumerate(self._held):
            known = num_tokens if index == 0 else self._num_known(index, num_tokens)
            hidden = _joined(before.waiting, source)
            result = None
            if known > 0:
                tokens = rows.token_ids[num_tokens - known :]
                result = self.head.run(index, tokens, hidden[:known], self.modules[index])
            rest = hidden[max(known, 0) :]
            held.append(_Held(before.num_rows + max(known, 0), rest if rest.shape[0] else None))
            made.append(result)
            if self.head.chained:
                source = hidden[:0] if result is None else result.recycled
        # At once, and last: an interrupt before leaves rows in the caches that `rewind` drops.
        self._held = tuple(held)
        assert made[0] is not None
        return made[0]

    def _num_known(self, index: int, num_tokens: int) -> int:
        """How many rows of a module have their token, once the first has taken `num_tokens`."""
        return self._held[0].num_rows + num_tokens - index - self._held[index].num_rows

    def _step(self, step: int, drawn: list[mx.array], last: HeadRows) -> HeadRows:
        """The rows of draft step `step` >= 1; the last of them predicts the next token."""
        if step >= len(self.modules):
            index = len(self.modules) - 1
            return self.head.run(index, drawn[-1], last.recycled[-1:], self.modules[index])
        waiting = self._held[step].waiting
        hidden = waiting if step == 1 or not self.head.chained else _joined(waiting, last.recycled)
        assert hidden is not None
        tokens = mx.concatenate(drawn[-hidden.shape[0] :])
        return self.head.run(step, tokens, hidden, self.modules[step])

    def keep(self) -> None:
        for held, module in zip(self._held, self.modules, strict=True):
            for layer in module:
                layer.rewind(held.num_rows)

    def rewind(self, num_rows: int) -> None:
        # First: an interrupt on the way must not leave it too high.
        if num_rows < self.num_rows:
            # What waited belonged to later rows. All modules go back to as many rows, and the
            # rows after them, passed again, bring what has to wait.
            self._held = tuple(_Held(num_rows) for _ in self.modules)
        self.keep()

    def reachable(self, num_rows: int) -> int:
        rows = [held.num_rows for held in self._held]
        if num_rows < self.num_rows:
            rows = [max(0, num_rows - len(self.modules) + 1)] * len(self.modules)
        pairs = zip(rows, self.modules, strict=True)
        held = all(layer.reaches(count) for count, module in pairs for layer in module)
        return rows[0] if held else 0

    def snapshot(self, *, whole: bool = False) -> Snapshot:
        rows = [
            Snapshot((held.num_rows,), () if held.waiting is None else (held.waiting,))
            for held in self._held
        ]
        return pack([*rows, *(layer.snapshot(whole=whole) for layer in self.cache)])

    def restore(self, snapshot: Snapshot) -> None:
        parts = unpack(snapshot)
        rows, layers = parts[: len(self.modules)], parts[len(self.modules) :]
        for layer, part in zip(self.cache, layers, strict=True):
            layer.restore(part)
        self._held = tuple(_Held(row.numbers[0], (*row.arrays, None)[0]) for row in rows)

    @property
    def num_bytes(self) -> int:
        return sum(layer.num_bytes for layer in self.cache)


def _joined(one: mx.array | None, other: mx.array) -> mx.array:
    return other if one is None else mx.concatenate([one, other])
