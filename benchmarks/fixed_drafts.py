"""A drafter that also drafts in every fixed mode, and what each law expects of these drafts."""

from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mtplx.draft_options import DraftOptions
from mtplx.drafting import Drafting
from mtplx.params import SamplingParams
from mtplx.sampling import History, warp
from mtplx.speculation import Draft, Drafter, DraftInput, DrawDraft, HiddenStage, Snapshot
from mtplx.state import DecodeState
from mtplx.stats import DecodeStats

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


@dataclass(slots=True)
class Watch:
    """A drafter that also drafts in every fixed mode, from the same state, and looks at p.

    seen: of each round, the expected number of accepted tokens by law.
    """

    inner: Drafter
    state: DecodeState
    params: SamplingParams
    seed: int
    depth: int
    modes: tuple[str, ...]
    seen: list[dict[str, float]] = field(default_factory=list)

    @property
    def hidden_stage(self) -> HiddenStage:
        return self.inner.hidden_stage

    @property
    def support(self) -> mx.array | None:
        return self.inner.support

    @property
    def num_rows(self) -> int:
        return self.inner.num_rows

    @property
    def num_bytes(self) -> int:
        return self.inner.num_bytes

    def look_back(self, window: int | None) -> None:
        self.inner.look_back(window)

    def observe(self, rows: DraftInput) -> None:
        self.inner.observe(rows)

    def keep(self) -> None:
        self.inner.keep()

    def rewind(self, num_rows: int) -> None:
        self.inner.rewind(num_rows)

    def reachable(self, num_rows: int) -> int:
        return self.inner.reachable(num_rows)

    def snapshot(self, *, whole: bool = False) -> Snapshot:
        return self.inner.snapshot(whole=whole)

    def restore(self, snapshot: Snapshot) -> None:
        self.inner.restore(snapshot)

    def propose(self, rows: DraftInput, num_tokens: int, draw: DrawDraft) -> Draft:
        before, found = self.inner.num_rows, {}
        for mode in self.modes:
            draft = self._fixed(mode, rows)
            found.update(self._expected(mode, draft, rows))
            self.inner.rewind(before)
        self.seen.append(found)
        return self.inner.propose(rows, num_tokens, draw)

    def _fixed(self, mode: str, rows: DraftInput) -> Draft:
        return _fixed_drafting(mode, self, rows).propose(self._tokens(rows), self.depth).draft

    def _tokens(self, rows: DraftInput) -> list[int]:
        return [*self.state.token_ids, int(np.array(rows.token_ids)[-1])]

    def _expected(self, mode: str, draft: Draft, rows: DraftInput) -> dict[str, float]:
        tokens = self._tokens(rows)
        passed = self.state.forward(mx.concatenate([mx.array(tokens[-1:]), draft.token_ids]))
        p = warp(passed.logits, self.params, History(tokens, draft.token_ids)).probs
        ids, rows_of_p = np.array(draft.token_ids), np.array(p).astype(np.float64)[:-1]
        self.state.keep([])
        if mode == "greedy":
            return {"greedy": float(np.cumprod(rows_of_p[np.arange(len(ids)), ids]).sum())}
        return expected_of_drawn(rows_of_p, ids, _dense(draft, rows_of_p.shape[1]))


@dataclass(frozen=True, slots=True)
class _Replay:
    """What a drafting sees of a state whose rows are given to it again."""

    drafter: Drafter
    target: object
    rows: DraftInput

    def draft_input(self, pending: int) -> DraftInput:
        return self.rows


def _fixed_drafting(mode: str, watch: Watch, rows: DraftInput) -> Drafting:
    replay = _Replay(watch.inner, watch.state.target, rows)
    options = DraftOptions(mode, lookup=False, stop=0.0)
    return Drafting(replay, watch.params, options, watch.seed, DecodeStats())  # type: ignore[arg-type]


def _dense(draft: Draft, vocab_size: int) -> Floats:
    assert draft.probs is not None
    q = np.zeros((len(draft), vocab_size))
    columns = slice(None) if draft.support is None else np.array(draft.support)
    q[:, columns] = np.array(draft.probs)
    return q


def expected_of_drawn(p: Floats, ids: Ints, q: Floats) -> dict[str, float]:
    """Accepted tokens that each law expects of a drawn draft: p, q [K, V], ids [K]."""
    order = np.arange(len(ids))
    p_drawn, q_drawn = p[order, ids], q[order, ids]
    carried, weights = 1.0, []
    for ratio in p_drawn / q_drawn:
        carried = min(1.0, carried * ratio)
        weights.append(carried)
    with np.errstate(divide="ignore", invalid="ignore"):
        shared = 1 / np.maximum(p / p_drawn[:, None], q / q_drawn[:, None]).sum(axis=1)
    shared = np.where(p_drawn > 0, shared, 0)
    return {
        "rejection": float(np.cumprod(np.minimum(1, p_drawn / q_drawn)).sum()),
        "block": float(sum(weights)),
        "coupled": float(np.cumprod(shared / q_drawn).sum()),
    }
