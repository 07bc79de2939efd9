"""The decode loop: rounds of draft, verify, accept and keep, over token ids only.

A round passes the pending token and a draft of k tokens through the target, lets the law keep a
prefix, cuts it where the text ends, and commits what was emitted. k = 0 is plain decoding; where
the next round is known to be plain too, it is queued before this one's token is read, so that the
device never waits for the host.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import mlx.core as mx

from mtplx.depth import DepthPolicy, fixed_depth
from mtplx.errors import MtplxError, PromptTooLongError, UsageError
from mtplx.params import SamplingParams
from mtplx.rng import draft_uniforms, round_uniforms
from mtplx.sampling import History, draw, warp
from mtplx.speculation import Acceptance, Draft, Target
from mtplx.state import DecodeState, Pass
from mtplx.stats import DecodeStats
from mtplx.verification import LAWS


@dataclass(frozen=True, slots=True)
class Emission:
    """What one round added. finish_reason: 'stop' (an end token, which is then the last one),
    'length' (max_tokens, or the context is full), or None while there is more to come."""

    token_ids: list[int]
    finish_reason: str | None


@dataclass(frozen=True, slots=True)
class Round:
    """A round whose work is queued on the device and whose result has not been read."""

    draft: Draft
    passed: Pass
    acceptance: Acceptance
    verified: mx.array  # [1] float32, ready when the target pass is
    packed: mx.array  # [K + 5] int32: accepted, underflows, complete, finite, tokens
    started_s: float
    drafted_s: float | None  # where they were noted while queueing
    verified_s: float | None


class NotFiniteError(MtplxError):
    """The model gave logits that are not numbers."""


def decode(
    state: DecodeState,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    *,
    seed: int,
    depth: DepthPolicy,
    drafting: bool,
    stop_ids: frozenset[int],
    stats: DecodeStats,
) -> Iterator[Emission]:
    """Emit tokens after the prompt, whose distribution is the target's under `params`.

    drafting: whether `depth` may ever answer more than 0 (the drafter is then fed along).
    The state afterwards holds the prompt and every emitted token but the last.
    Raises PromptTooLongError, UsageError for a prompt that is none, and NotFiniteError for logits
    that are not numbers.
    """
    started_s = time.perf_counter()
    room = _room_after(prompt_ids, state.target)
    stats.num_prompt_tokens = len(prompt_ids)
    stats.num_reused_tokens = state.begin(prompt_ids, drafting=drafting)
    stats.total_s = stats.prefill_s = time.perf_counter() - started_s
    decoder = _Decoder(state, params, seed, stop_ids | set(params.stop_ids), stats, started_s)
    limit = min(params.max_tokens, room)
    policy = depth if drafting and state.drafter is not None else fixed_depth(0)
    for emission in decoder.rounds(list(prompt_ids), limit, policy):
        stats.total_s = time.perf_counter() - started_s
        yield emission
        decoder.free_s = time.perf_counter()
        stats.total_s = decoder.free_s - started_s


def _room_after(prompt_ids: Sequence[int], target: Target) -> int:
    """How many tokens may follow the prompt."""
    room = target.context_length - len(prompt_ids)
    if room < 1:
        raise PromptTooLongError(
            f"The prompt has {len(prompt_ids):,} tokens; with this model it can have at most "
            f"{target.context_length - 1:,}. Shorten it, or start a new conversation."
        )
    if not prompt_ids:
        raise UsageError("The prompt has no tokens: there is nothing to continue.")
    # An embedding of a token that is not there would be whatever lies behind the table.
    if min(prompt_ids) < 0 or max(prompt_ids) >= target.vocab_size:
        raise UsageError(
            f"The prompt's token ids go from {min(prompt_ids)} to {max(prompt_ids)}, the model's "
            f"from 0 to {target.vocab_size - 1}. Use the tokenizer that belongs to the model."
        )
    return room


@dataclass(slots=True)
class _Decoder:
    """One request: what stays the same in all of its rounds, and the clock between them."""

    state: DecodeState
    params: SamplingParams
    seed: int
    stop_ids: frozenset[int]
    stats: DecodeStats
    started_s: float
    free_s: float = 0.0  # when the last round had been read and the caller had come back

    def rounds(self, tokens: list[int], limit: int, depth: DepthPolicy) -> Iterator[Emission]:
        """tokens: the prompt; emitted tokens are appended. limit: how many may be emitted."""
        left, request = limit, self.state.num_begun
        queued: Round | None = None
        while True:
            if self.state.num_begun != request:
                raise UsageError(
                    "Another request has begun on this state, so the earlier one cannot go on. "
                    "Use a state of its own for each text that is written at the same time."
                )
            if queued is None:
                k = min(depth(len(tokens), self.stats), left - 1)
                queued = self._queue(tokens, self._draft(tokens, k))
            current, queued = queued, None
            plain = len(current.draft) == 0
            if plain:
                # A plain pass is of the pending token alone, which is committed whatever follows.
                self.state.keep(tokens[-1:])
                if left > 1 and depth(len(tokens) + 1, self.stats) == 0:
                    queued = self._queue(tokens, _no_draft(), current.acceptance.token_ids)
            found, redone = self._read(current, tokens)
            emitted, reason = self._cut(found, left)
            if not plain:
                self.state.keep([tokens[-1], *emitted[:-1]])
            elif queued is not None and (redone or reason is not None):
                self.state.keep([])
                queued = None
            tokens += emitted
            left -= len(emitted)
            self._count(len(current.draft), min(len(found) - 1, len(emitted)), len(emitted))
            yield Emission(emitted, reason)
            if reason is not None:
                return

    def _cut(self, found: list[int], left: int) -> tuple[list[int], str | None]:
        """What of a round's tokens is emitted, and why nothing follows."""
        emitted = found[:left]
        for i, token_id in enumerate(emitted):
            if token_id in self.stop_ids:
                return emitted[: i + 1], "stop"
        return emitted, "length" if len(emitted) == left else None

    def _count(self, num_drafted: int, num_accepted: int, num_emitted: int) -> None:
        self.stats.count_draft(num_drafted, num_accepted)
        self.stats.num_tokens += num_emitted
        self.stats.num_rounds += 1

    def _draft(self, tokens: list[int], k: int) -> Draft:
        rows = self.state.draft_input(tokens[-1]) if k > 0 else None
        if rows is None or self.state.drafter is None:
            return _no_draft()
        draw_draft = partial(self._draw_draft, position=len(tokens))
        return self.state.drafter.propose(rows, k, draw_draft)

    def _draw_draft(
        self, logits: mx.array, step: int, position: int
    ) -> tuple[mx.array, mx.array | None]:
        """A token of the draft, in the manner of the request but without its token history."""
        if not self.params.draws_randomly:
            return mx.argmax(logits, axis=-1).astype(mx.int32), None
        plain = replace(
            self.params,
            logit_bias={},
            repetition_penalty=1.0,
            presence_penalty=0.0,
            frequency_penalty=0.0,
        )
        warped = warp(logits, plain, History([]))
        # A head can be broken where the target is not. Its q is then the one column that a draw
        # from it is sure to give, so that what is emitted stays the target's.
        q = mx.where(warped.finite[:, None], warped.probs, mx.arange(logits.shape[-1]) == 0)
        return draw(q, draft_uniforms(self.seed, position, step)[None]), q

    def _queue(self, tokens: list[int], draft: Draft, pending: mx.array | None = None) -> Round:
        """Queue a round. pending: [1], the pending token where the host does not know it yet."""
        started_s = time.perf_counter()
        drafted_s = _start(draft.token_ids, draft)
        ahead = draft.token_ids if pending is None else pending
        block = mx.concatenate([mx.array(tokens[-1:]), ahead]) if pending is None else pending
        passed = self.state.forward(block)
        verified = passed.logits[0, :1].astype(mx.float32)
        verified_s = _start(verified, draft)
        position = len(tokens) if pending is None else len(tokens) + 1
        history = History(tokens, ahead)
        acceptance, packed = self._accept(passed, draft, position, history, full_sort=False)
        mx.async_eval(packed)
        self.stats.num_forward_calls += 1
        times = (started_s, drafted_s, verified_s)
        return Round(draft, passed, acceptance, verified, packed, *times)

    def _accept(
        self, passed: Pass, draft: Draft, position: int, history: History, *, full_sort: bool
    ) -> tuple[Acceptance, mx.array]:
        """What the law keeps, and the same packed for one read."""
        warped = warp(passed.logits, self.params, history, full_sort=full_sort)
        uniforms = round_uniforms(self.seed, position, len(draft))
        acceptance = LAWS[self.params.law](warped.probs, draft, uniforms)
        counts = [acceptance.num_accepted, acceptance.num_underflows]
        flags = [mx.all(warped.complete), mx.all(warped.finite)]
        head = mx.stack([x.astype(mx.int32) for x in (*counts, *flags)])
        return acceptance, mx.concatenate([head, acceptance.token_ids])

    def _read(self, current: Round, tokens: list[int]) -> tuple[list[int], bool]:
        """Wait for a round; return the tokens it found, and whether they had to be redone.

        The parts of a round end when their results are ready. A round that was queued ahead
        begins when the one before it had been read and the caller had come back.
        """
        begun_s = max(current.started_s, self.free_s)
        _wait(current.draft.token_ids)
        noted_s = current.drafted_s or time.perf_counter()
        drafted_s = noted_s if len(current.draft) else begun_s
        _wait(current.verified)
        verified_s = current.verified_s or time.perf_counter()
        try:
            found, complete = self._host(current.packed)
        except NotFiniteError:
            # What this pass left in the caches is not to be used again, committed or not.
            del self.state.token_ids[len(tokens) - 1 :]
            raise
        if not complete:
            self.stats.fallbacks["full sort of the vocabulary"] += 1
            history = History(tokens, current.draft.token_ids)
            _, packed = self._accept(
                current.passed, current.draft, len(tokens), history, full_sort=True
            )
            found, _ = self._host(packed)
        self.free_s = time.perf_counter()
        self.stats.total_s = self.free_s - self.started_s
        self.stats.draft_s += drafted_s - begun_s
        self.stats.verify_s += verified_s - drafted_s
        self.stats.accept_s += self.free_s - verified_s
        return found, not complete

    def _host(self, packed: mx.array) -> tuple[list[int], bool]:
        """The one read of a round: accepted tokens with the one after them, and completeness."""
        self.stats.num_host_reads += 1
        numbers = cast("list[int]", packed.tolist())
        accepted, underflows, complete, finite, *token_ids = numbers
        if not finite:
            raise NotFiniteError(
                "The model's logits are not finite numbers, so no token can be drawn. "
                "The weights are damaged or overflow; look at them with `mtplx inspect`."
            )
        if underflows:
            self.stats.fallbacks["residual without mass"] += underflows
        return token_ids[: accepted + 1], bool(complete)


def _no_draft() -> Draft:
    # Made anew for each round: an array that is not evaluated belongs to the thread it is made in.
    return Draft(mx.zeros(0, dtype=mx.int32))


def _start(array: mx.array, draft: Draft) -> float | None:
    """Queue the evaluation of a part of a round; on a CPU, note when it has been worked out.

    There, mx.async_eval only returns when all but the last few operations are done. Were the next
    part queued first, this one's end would be noticed at that part's end.
    """
    mx.async_eval(array)
    if len(draft) == 0 or mx.default_device() != mx.cpu:
        return None
    _wait(array)
    return time.perf_counter()


def _wait(array: mx.array) -> None:
    """Until this queued array is ready, and no longer: mx.eval would wait for all of the queue."""
    memoryview(array).release()  # type: ignore[arg-type]  # mlx's stubs lack the buffer protocol
