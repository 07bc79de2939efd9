"""One round: what is queued on the device, and the one read that brings its result to the host."""

import time
from dataclasses import dataclass
from typing import cast

import mlx.core as mx
import numpy as np

from mtplx.drafting import Drafting, Proposal
from mtplx.errors import MtplxError
from mtplx.logprobs import TokenLogprobs, packed_logprobs, unpacked_logprobs, width
from mtplx.pace import RoundTime
from mtplx.params import SamplingParams
from mtplx.rng import gate_uniforms, round_uniforms
from mtplx.sampling import History, Warped, check_left, completed, warp
from mtplx.speculation import Acceptance
from mtplx.state import DecodeState
from mtplx.stats import DecodeStats
from mtplx.verification import LAWS


@dataclass(frozen=True, slots=True)
class Round:
    """A round whose work is queued on the device and whose result has not been read."""

    proposal: Proposal
    warped: Warped
    acceptance: Acceptance
    verified: mx.array  # [1] float32, ready when the target pass is
    packed: mx.array  # [K + 5 + E] int32: accepted, underflows, complete, finite, tokens, estimates
    started_s: float
    drafted_s: float | None  # where they were noted while queueing
    verified_s: float | None
    queued_s: float  # when all was queued

    @property
    def num_drafted(self) -> int:
        return len(self.proposal.draft)


@dataclass(frozen=True, slots=True)
class Found:
    """What the host has read of a round: the accepted tokens and the one after them.

    complete: whether the warps ranked enough tokens, so that it stands.
    estimates: how likely drafts of other modes were accepted, as `Drafting.learn` takes them.
    """

    token_ids: list[int]
    complete: bool
    estimates: list[float]
    logprobs: tuple[TokenLogprobs, ...]

    @property
    def num_accepted(self) -> int:
        return len(self.token_ids) - 1


class NotFiniteError(MtplxError):
    """The model gave logits that are not numbers."""


@dataclass(slots=True)
class Rounds:
    """The rounds of one request, and the clock between them.

    started_s: when the request began. free_s: when the last round had been read and the caller had
        come back. timed: what that round took.
    """

    state: DecodeState
    params: SamplingParams
    seed: int
    drafts: Drafting
    stats: DecodeStats
    started_s: float
    free_s: float = 0.0
    timed: RoundTime | None = None

    def draft(self, tokens: list[int], k: int) -> Round:
        """Queue a round after these tokens, of at most k drafted ones."""
        started_s = time.perf_counter()
        return self._queue(tokens, self.drafts.propose(tokens, k), started_s)

    def plain(self, tokens: list[int], proposal: Proposal, pending: mx.array) -> Round:
        """Queue a plain round after these and a token that the host does not know: pending [1]."""
        return self._queue(tokens, proposal, time.perf_counter(), pending)

    def _queue(
        self,
        tokens: list[int],
        proposal: Proposal,
        started_s: float,
        pending: mx.array | None = None,
    ) -> Round:
        draft = proposal.draft
        is_drafted = len(draft) > 0
        drafted_s = _start(draft.token_ids, note=True) if is_drafted else time.perf_counter()
        ahead = draft.token_ids if pending is None else pending
        block = mx.concatenate([mx.array(tokens[-1:]), ahead]) if pending is None else pending
        passed = self.state.forward(block)
        verified = passed.logits[0, :1].astype(mx.float32)
        verified_s = _start(verified, note=is_drafted)
        position = len(tokens) if pending is None else len(tokens) + 1
        history = History(tokens, ahead, self._gates(position, len(draft) + 1))
        if self.params.processors:
            self.stats.fallbacks["tokens read for logits processors"] += 1
        warped = warp(passed.logits, self.params, history)
        acceptance, packed = self._accept(warped, proposal, position)
        mx.async_eval(packed)
        self.stats.num_forward_calls += 1
        times = (started_s, drafted_s, verified_s, time.perf_counter())
        return Round(proposal, warped, acceptance, verified, packed, *times)

    def _gates(self, position: int, count: int) -> mx.array | None:
        """The numbers of XTC for the tokens from this position on, where it is on."""
        return gate_uniforms(self.seed, position, count) if self.params.xtc_probability else None

    def _accept(
        self, warped: Warped, proposal: Proposal, position: int
    ) -> tuple[Acceptance, mx.array]:
        """What the law keeps, and all that the host wants to know, packed for one read."""
        uniforms = round_uniforms(self.seed, position, len(proposal.draft))
        # At temperature 0 every law keeps what the target would take, and none draws.
        law = LAWS[self.params.law if self.params.draws_randomly else "rejection"]
        acceptance = law(warped.probs, proposal.draft, uniforms)
        counts = [acceptance.num_accepted, acceptance.num_underflows]
        flags = [mx.all(warped.complete), mx.all(warped.finite)]
        parts = [mx.stack([x.astype(mx.int32) for x in (*counts, *flags)]), acceptance.token_ids]
        if self.params.logprobs is not None:
            parts.append(packed_logprobs(warped, acceptance.token_ids, self.params))
        estimates = self.drafts.estimates(warped.probs, proposal, position)
        if estimates is not None:
            parts.append(mx.view(estimates, mx.int32))
        return acceptance, mx.concatenate(parts)

    def read(self, current: Round, tokens: list[int]) -> tuple[Found, bool]:
        """Wait for a round; return what it found, and whether that had to be redone.

        The parts of a round end when their results are ready. A round that was queued ahead
        begins when the one before it had been read and the caller had come back.
        """
        asked_s = time.perf_counter()
        begun_s = max(current.started_s, self.free_s)
        _wait(current.proposal.draft.token_ids)
        drafted_s = max(begun_s, current.drafted_s or time.perf_counter())
        _wait(current.verified)
        verified_s = current.verified_s or time.perf_counter()
        try:
            found = self._host(current.packed, current.num_drafted)
        except NotFiniteError:
            # What this pass left in the caches is not to be used again, committed or not.
            del self.state.token_ids[len(tokens) - 1 :]
            check_left(current.warped, self.params)
            raise
        redone = not found.complete
        if redone:
            self.stats.fallbacks["full sort of the vocabulary"] += 1
            warped = completed(current.warped, self.params)
            _, packed = self._accept(warped, current.proposal, len(tokens))
            found = self._host(packed, current.num_drafted)
        self.free_s = time.perf_counter()
        self.stats.total_s = self.free_s - self.started_s
        self.stats.draft_s += drafted_s - begun_s
        self.stats.verify_s += verified_s - drafted_s
        self.stats.accept_s += self.free_s - verified_s
        # A round that was queued ahead had the device while the one before it was waited for.
        total_s = current.queued_s - current.started_s + self.free_s - asked_s
        self.timed = _timed(current.proposal, len(tokens), drafted_s - begun_s, total_s)
        return found, redone

    def _host(self, packed: mx.array, num_drafted: int) -> Found:
        """The one read of a round."""
        self.stats.num_host_reads += 1
        numbers = cast("list[int]", packed.tolist())
        accepted, underflows, complete, finite, *rest = numbers
        if not finite:
            raise NotFiniteError(
                "The model's logits are not finite numbers, so no token can be drawn. "
                "The weights are damaged or overflow; look at them with `mtplx inspect`."
            )
        if underflows:
            self.stats.fallbacks["residual without mass"] += underflows
        token_ids, num_rows = rest[: accepted + 1], num_drafted + 1
        ends = num_rows + num_rows * width(self.params, self.state.target.vocab_size)
        logprobs = unpacked_logprobs(rest[num_rows:ends], num_rows, token_ids)
        estimates = np.array(rest[ends:], dtype=np.int32).view(np.float32)
        return Found(token_ids, bool(complete), estimates.tolist(), logprobs)


def _timed(proposal: Proposal, context: int, draft_s: float, total_s: float) -> RoundTime:
    num_steps = max(proposal.num_head, len(proposal.chances))
    draft_s = min(draft_s, total_s) if num_steps else 0.0
    return RoundTime(context, 1 + len(proposal.draft), num_steps, draft_s, total_s - draft_s)


def _start(array: mx.array, *, note: bool) -> float | None:
    """Queue the evaluation of a part of a round; on a CPU, `note` when it has been worked out.

    There, mx.async_eval only returns when all but the last few operations are done. Were the next
    part queued first, this one's end would be noticed at that part's end.
    """
    mx.async_eval(array)
    if not note or mx.default_device() != mx.cpu:
        return None
    _wait(array)
    return time.perf_counter()


def _wait(array: mx.array) -> None:
    """Until this queued array is ready, and no longer: mx.eval would wait for all of the queue."""
    memoryview(array).release()  # type: ignore[arg-type]  # mlx's stubs lack the buffer protocol
