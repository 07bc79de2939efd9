"""Who drafts the next tokens of a request, and how: the head, an earlier passage, or both.

Nothing here can change the distribution of the text: whatever is proposed, a law decides on it. A
choice may depend on all that has been emitted, on earlier rounds and on the drafted tokens so far,
never on the token that it is about.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import mlx.core as mx

from mtplx.coupled import exponentials, race
from mtplx.depth import MAX_DEPTH, USUAL_STOP, Ask, DepthPolicy, FixedDepth, Outcome, Plan
from mtplx.draft_mode import ModeChoice, coupled_rates, greedy_rates, sampled_rates
from mtplx.draft_options import DraftOptions
from mtplx.lookup import Continuation, LookupIndex
from mtplx.params import SamplingParams
from mtplx.rng import draft_uniforms, gate_uniforms, noise_keys
from mtplx.sampling import History, draft_params, draw, warp
from mtplx.speculation import Draft
from mtplx.state import DecodeState
from mtplx.stats import DecodeStats
from mtplx.warps.dry import without_repetition
from mtplx.warps.penalties import penalised
from mtplx.warps.scores import allowed, biased

_NOTHING = Continuation()
_PLAIN = Plan()
_NO_ROOM = Plan(reason="no room")


@dataclass(frozen=True, slots=True)
class Proposal:
    """A draft, where it comes from, and what can be learnt from it.

    mode: how the head chose the first `num_head` tokens; the others continue an earlier passage.
    found: that passage, also where it was not used. plan: what was to be drafted.
    chances: how likely the head held each of its tokens, that of one that ended the draft
        included; empty where that was not read.
    logits: [J, S], the head's, where the round is to be looked at.
    """

    draft: Draft
    mode: str = "greedy"
    num_head: int = 0
    found: Continuation = _NOTHING
    plan: Plan = _PLAIN
    chances: tuple[float, ...] = ()
    logits: mx.array | None = None


class Drafting:
    """The drafts of one request."""

    def __init__(
        self,
        state: DecodeState,
        params: SamplingParams,
        options: DraftOptions,
        seed: int,
        stats: DecodeStats,
        policy: DepthPolicy | None = None,
    ) -> None:
        self._state, self._params, self._options = state, params, options
        self._seed, self._stats = seed, stats
        self._policy = policy or FixedDepth(MAX_DEPTH)
        self._reads_chances = mx.default_device() == mx.cpu or bool(options.stop)
        self._temperature = options.temperature or 0.85 * params.temperature
        self._modes = ModeChoice(_modes(params, options))
        self._index = LookupIndex() if options.looks_up else None

    def propose(self, token_ids: list[int], num_tokens: int) -> Proposal:
        """At most so many tokens to stand after these; none is an ordinary answer."""
        if num_tokens < 1:
            return Proposal(no_draft(), plan=_PLAIN if self._policy.most < 1 else _NO_ROOM)
        found = self._look_up(token_ids, num_tokens)
        chances = self._reads_chances and self._options.stop != 0
        plan = self._policy.plan(Ask(len(token_ids), num_tokens, found, self._has_head, chances))
        rows = self._state.draft_input(token_ids[-1]) if plan.num_head else None
        if rows is None or self._state.drafter is None:
            passage = _passage(found.token_ids[: plan.num_found])
            return Proposal(passage, found=found, plan=replace(plan, num_head=0))
        least = self._least(plan)
        chain = _Chain(token_ids, least, plan.asks if least is plan.least else ())
        draft = self._state.drafter.propose(rows, plan.num_head, partial(self._choose, chain))
        looked_at = self._modes.wants_estimates and 0 < len(draft) <= len(chain.logits)
        behind = found.token_ids[len(draft) : plan.num_head + plan.num_found]
        return Proposal(
            _followed(draft, behind if plan.num_found else ()),
            self._modes.mode,
            len(draft),
            found,
            plan,
            tuple(chain.held),
            mx.concatenate(chain.logits[: len(draft)]) if looked_at else None,
        )

    def propose_ahead(self, token_ids: list[int]) -> Proposal | None:
        """No draft after these and one that is not known yet, where that is certain; else None."""
        most = self._policy.most
        found = self._look_up(token_ids, most) if most > 0 else _NOTHING
        plan = self._policy.plan_ahead(len(token_ids) + 1, found)
        return None if plan is None else Proposal(no_draft(), plan=plan)

    def _least(self, plan: Plan) -> tuple[float, ...]:
        """How likely each token of the head has to be; as many as it may draft, or none."""
        if not self._reads_chances or self._options.stop == 0:
            return ()
        if plan.least and self._options.stop is None:
            return plan.least
        return (USUAL_STOP if self._options.stop is None else self._options.stop,) * plan.num_head

    def estimates(self, probs: mx.array, proposal: Proposal, position: int) -> mx.array | None:
        """[M * J] float32, how likely each mode is accepted at each of the head's positions.

        probs: [K + 1, V], the target's. position: of the first drafted token. Lazy; None where
        there is nothing to find out.
        """
        if proposal.logits is None or self._state.drafter is None:
            return None
        p, logits = probs[: proposal.num_head], proposal.logits
        if self._state.drafter.support is not None:
            p = mx.take(p, self._state.drafter.support, axis=-1)
        shared = coupled_rates if self._params.law == "coupled" else sampled_rates
        rates = [
            greedy_rates(p, logits)
            if mode == "greedy"
            else shared(p, self._q(logits, mode, position))
            for mode in self._modes.modes
        ]
        return mx.concatenate(rates)

    def learn(self, proposal: Proposal, emitted: list[int], estimates: list[float]) -> None:
        """Take in what a round emitted: the accepted tokens and one more."""
        num_accepted, num_head = len(emitted) - 1, proposal.num_head
        self._stats.count_plan(len(proposal.draft), proposal.plan.reason)
        num_passage = len(proposal.draft) - num_head
        if num_head:
            self._stats.count_source(proposal.mode, num_head, min(num_accepted, num_head))
            rows = [estimates[i : i + num_head] for i in range(0, len(estimates), num_head)]
            self._modes.learn(rows, num_accepted + 1)
        if num_passage:
            self._stats.count_source("lookup", num_passage, max(num_accepted - num_head, 0))
        plan, chances = proposal.plan, proposal.chances
        self._policy.learn(
            Outcome(proposal.found, plan, num_head, num_passage, chances, tuple(emitted))
        )

    @property
    def _has_head(self) -> bool:
        return self._options.uses_head and self._state.drafter is not None

    def _look_up(self, token_ids: list[int], num_tokens: int) -> Continuation:
        if self._index is None:
            return _NOTHING
        self._index.extend(token_ids)
        return self._index.find(token_ids, num_tokens)

    def _choose(
        self, chain: "_Chain", logits: mx.array, step: int
    ) -> tuple[mx.array, mx.array | None] | None:
        """One token of the head's draft, in the manner of the request; None ends the draft."""
        if chain.asks and math.prod(chain.chances) < chain.asks[step]:
            return None
        mode, start = self._modes.mode, len(chain.token_ids)
        logits = self._as_requested(logits, chain)
        q = None if mode == "greedy" else self._q(logits, mode, start + step)
        chain.logits.append(logits)
        if chain.least and self._is_unlikely(chain, logits, q, step):
            return None
        if q is None:
            column = mx.argmax(logits, axis=-1).astype(mx.int32)
        elif self._params.law == "coupled":
            noise = exponentials(noise_keys(self._seed, start + step, 1), self._ids(logits))
            column, q = race(q, noise), None
        else:
            column = draw(q, draft_uniforms(self._seed, start, step)[None])
        chain.drafted.append(mx.take(self._ids(logits), column))
        return column, q

    def _ids(self, logits: mx.array) -> mx.array:
        """[S], the token ids of the columns of the head's logits."""
        assert self._state.drafter is not None
        ids = self._state.drafter.support
        return mx.arange(logits.shape[-1]) if ids is None else ids

    def _as_requested(self, logits: mx.array, chain: "_Chain") -> mx.array:
        """The head's logits [1, S] after bias, allowed tokens and penalties, as the target's are.

        Not after the request's own functions, which would have to read the draft so far.
        """
        params, ids = replace(self._params, processors=()), self._ids(logits)
        if params == draft_params(params):
            return logits
        scores = mx.full((1, self._state.target.vocab_size), -mx.inf)
        scores = mx.put_along_axis(scores, ids[None], logits.astype(mx.float32), axis=-1)
        history = History(chain.token_ids, mx.concatenate([_no_ids(), *chain.drafted]))
        scores = allowed(biased(scores, params), params)
        scores = without_repetition(penalised(scores, params, history), params, history)
        return mx.take(scores, ids, axis=-1)

    def _q(self, logits: mx.array, mode: str, position: int) -> mx.array:
        """[J, S], what the head draws from at `position` and the positions after it."""
        if mode == "filtered":
            params = draft_params(self._params)
        else:
            params = SamplingParams(temperature=self._temperature)
        gates = None
        if params.excludes_top_choices:
            gates = gate_uniforms(self._seed, position, len(logits))
        # Nothing here looks at the history; it only has to be as long as there are rows.
        history = History([], mx.zeros(len(logits) - 1, dtype=mx.int32), gates)
        warped = warp(logits, params, history)
        # A head can be broken where the target is not. Its q is then the one column that a draw
        # from it is sure to give, so that what is emitted stays the target's.
        first = mx.arange(logits.shape[-1]) == 0
        return mx.where(warped.finite[:, None], warped.probs, first)

    def _is_unlikely(
        self, chain: "_Chain", logits: mx.array, q: mx.array | None, step: int
    ) -> bool:
        """Whether the next token is not worth drafting, going by what it is drawn from.

        Decided before the draw: to look at a drawn token and then drop it would change the text's
        distribution, since the improbable ones would be tried less often than drawn.
        """
        if q is None:
            temperature = self._params.temperature or 1.0
            q = mx.softmax(logits.astype(mx.float32) / temperature, axis=-1)
        likely = float(mx.max(q).item())  # type: ignore[arg-type]
        self._stats.num_host_reads += 1
        chain.held.append(likely)
        chain.chances.append(self._policy.chance(likely))
        return math.prod(chain.chances) < chain.least[step]


@dataclass(slots=True)
class _Chain:
    """One draft of the head.

    least: how likely each of its tokens has to be to be reached and accepted; empty where that is
        not asked. asks: how likely it has to be to be reached for the head to run.
    held: how likely the head held those so far. chances: how likely they then are.
    """

    token_ids: list[int]  # before the draft
    least: tuple[float, ...]
    asks: tuple[float, ...]
    logits: list[mx.array] = field(default_factory=list)
    drafted: list[mx.array] = field(default_factory=list)
    held: list[float] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)


def no_draft() -> Draft:
    """An empty draft."""
    return Draft(_no_ids())


def _no_ids() -> mx.array:
    # Made anew each time: an array that is not evaluated belongs to the thread it is made in.
    return mx.zeros(0, dtype=mx.int32)


def _modes(params: SamplingParams, options: DraftOptions) -> tuple[str, ...]:
    """The modes that may serve, the one to begin with first."""
    if not params.draws_randomly:
        return ("greedy",)
    if options.mode not in ("auto", "lookup"):
        return (options.mode,)
    drawn = ("filtered", "sampled") if params.filters else ("sampled",)
    # Where the target is this sure, a greedy draft is accepted as often and costs less.
    return ("greedy", *drawn) if params.temperature < 0.5 else (*drawn, "greedy")


def _passage(token_ids: Sequence[int]) -> Draft:
    return Draft(mx.array(list(token_ids), dtype=mx.int32)) if token_ids else no_draft()


def _followed(draft: Draft, token_ids: Sequence[int]) -> Draft:
    """The draft and then these tokens, which are one-hot."""
    if not token_ids:
        return draft
    return replace(
        draft,
        token_ids=mx.concatenate([draft.token_ids, mx.array(list(token_ids), dtype=mx.int32)]),
        sampled=None if draft.probs is None else tuple(range(len(draft))),
    )
