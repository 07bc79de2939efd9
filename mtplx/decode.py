"""The decode loop: rounds of draft, verify, accept and keep, over token ids only.

A round passes the pending token and a draft of k tokens through the target, lets the law keep a
prefix, cuts it where the text ends, and commits what was emitted. k = 0 is plain decoding; where
the next round is known to be plain too, it is queued before this one's token is read, so that the
device never waits for the host.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mtplx.depth import DepthPolicy, fixed_depth
from mtplx.draft_options import DraftOptions
from mtplx.drafting import Drafting
from mtplx.errors import PromptTooLongError, UsageError
from mtplx.logprobs import TokenLogprobs
from mtplx.params import SamplingParams
from mtplx.rounds import Round, Rounds
from mtplx.speculation import Target
from mtplx.state import DecodeState, Progress
from mtplx.stats import DecodeStats

_USUAL_DRAFTS = DraftOptions()


@dataclass(frozen=True, slots=True)
class Emission:
    """What one round added. finish_reason: 'stop' (an end token, which is then the last one),
    'length' (max_tokens, or the context is full), or None while there is more to come.
    logprobs: one for each token, where the request asks for them."""

    token_ids: list[int]
    finish_reason: str | None
    logprobs: tuple[TokenLogprobs, ...] = ()


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
    draft: DraftOptions = _USUAL_DRAFTS,
    progress: Progress | None = None,
) -> Iterator[Emission]:
    """Emit tokens after the prompt, whose distribution is the target's under `params`.

    depth: how many tokens each round drafts.
    drafting: whether that may ever be more than 0 (the drafter is then fed along).
    draft: who drafts, and how.
    progress: as of DecodeState.begin.
    The state afterwards holds the prompt and every emitted token but the last.
    Raises PromptTooLongError, UsageError for a prompt that is none, and NotFiniteError for logits
    that are not numbers.
    """
    started_s = time.perf_counter()
    room = _room_after(prompt_ids, state.target)
    stats.num_prompt_tokens = len(prompt_ids)
    feeds_head = drafting and draft.uses_head
    if feeds_head and state.drafter is not None:
        state.drafter.look_back(draft.window or None)
    stats.num_reused_tokens = state.begin(prompt_ids, drafting=feeds_head, progress=progress)
    stats.total_s = stats.prefill_s = time.perf_counter() - started_s
    has_drafter = (draft.uses_head and state.drafter is not None) or draft.mode == "lookup"
    policy = depth if drafting and has_drafter else fixed_depth(0)
    drafts = Drafting(state, params, draft, seed, stats, policy)
    ends = stop_ids | set(params.stop_ids)
    rounds = Rounds(state, params, seed, drafts, stats, started_s)
    decoder = _Decoder(rounds, ends)
    num_replays = state.num_replays
    for emission in decoder.emissions(list(prompt_ids), min(params.max_tokens, room), policy):
        stats.total_s = time.perf_counter() - started_s
        if state.num_replays > num_replays:
            stats.fallbacks["layers run again to undo a draft"] = state.num_replays - num_replays
        yield emission
        rounds.free_s = time.perf_counter()
        stats.total_s = rounds.free_s - started_s


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
    """One request: its rounds one after the other, each cut where the text ends."""

    rounds: Rounds
    stop_ids: frozenset[int]

    def emissions(self, tokens: list[int], limit: int, policy: DepthPolicy) -> Iterator[Emission]:
        """tokens: the prompt; emitted tokens are appended. limit: how many may be emitted."""
        rounds, state = self.rounds, self.rounds.state
        left, request = limit, state.num_begun
        queued: Round | None = None
        while True:
            if state.num_begun != request:
                raise UsageError(
                    "Another request has begun on this state, so the earlier one cannot go on. "
                    "Use a state of its own for each text that is written at the same time."
                )
            if queued is None:
                queued = rounds.draft(tokens, min(policy.most, left - 1))
            current, queued = queued, None
            plain = current.num_drafted == 0
            if plain:
                # A plain pass is of the pending token alone, which is committed whatever follows.
                state.keep(tokens[-1:])
                queues_ahead = left > 1 and not rounds.params.processors
                ahead = rounds.drafts.propose_ahead(tokens) if queues_ahead else None
                if ahead is not None:
                    queued = rounds.plain(tokens, ahead, current.acceptance.token_ids)
            found, redone = rounds.read(current, tokens)
            rounds.drafts.learn(current.proposal, found.token_ids, found.estimates)
            if rounds.timed is not None:
                policy.learn_time(rounds.timed)
            emitted, reason = self._cut(found.token_ids, left)
            if not plain:
                state.keep([tokens[-1], *emitted[:-1]])
            elif queued is not None and (redone or reason is not None):
                state.keep([])
                queued = None
            tokens += emitted
            left -= len(emitted)
            self._count(current.num_drafted, found.num_accepted, len(emitted))
            yield Emission(emitted, reason, found.logprobs[: len(emitted)])
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
        stats = self.rounds.stats
        stats.count_draft(num_drafted, min(num_accepted, num_emitted))
        stats.num_tokens += num_emitted
        stats.num_rounds += 1
