"""Rounds without a model: a policy, a machine whose clock is a formula, and scripted acceptance."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from mtplx.auto_depth import AutoDepth
from mtplx.costs import CostCurve, Priors, expected_tokens
from mtplx.depth import Ask, DepthPolicy, Outcome, Plan
from mtplx.lookup import Continuation
from mtplx.pace import Pace, RoundTime
from mtplx.shipped_costs import SHIPPED_PRIORS, shipped_curve

NOTHING = Continuation()
EVEN: Priors = {"": (0.5,)}


@dataclass(frozen=True, slots=True)
class Text:
    """What is written.

    rates: how likely the head's tokens are accepted where those before were, by tokens emitted.
    recurs: how likely each token goes on like an earlier passage; 0 is a text without one.
    """

    rates: Callable[[int], Sequence[float]]
    recurs: float = 0.0


def steady(*rates: float, recurs: float = 0.0) -> Text:
    """A text that is the same from beginning to end; deeper tokens are as likely as the last."""
    return Text(lambda emitted: [*rates, *[rates[-1]] * 16][:16], recurs)


@dataclass(slots=True)
class Run:
    """What became of it.

    num_expected: tokens of its rounds on average over all outcomes, which leaves luck out of it.
    depths: rounds by drafted tokens; late: of the second half only.
    """

    num_tokens: int = 0
    num_expected: float = 0.0
    total_s: float = 0.0
    probed_s: float = 0.0
    depths: Counter[int] = field(default_factory=Counter)
    late: Counter[int] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def tokens_per_s(self) -> float:
        return self.num_expected / self.total_s

    @property
    def usual(self) -> int:
        """The depth of most rounds in the second half."""
        return self.late.most_common(1)[0][0]


def run(
    policy: DepthPolicy,
    machine: CostCurve,
    text: Text,
    num_tokens: int,
    *,
    context: int = 100,
    seed: int = 0,
    slowness: Callable[[int], float] = lambda index: 1.0,
) -> Run:
    """Write so many tokens, all of them in the same context.

    slowness: by which the machine's time is multiplied in a round.
    """
    rng, done, index = np.random.default_rng([seed, 7]), Run(), 0
    ahead: Plan | None = None
    while done.num_tokens < num_tokens:
        found = Continuation(tuple(range(16)), 8) if text.recurs else NOTHING
        ask = Ask(context, 16, found, has_head=True, reads_chances=False)
        plan = ahead or policy.plan(ask)
        ahead = None
        if plan.num_head + plan.num_found == 0:
            ahead = policy.plan_ahead(ask.context + 1, found)
        chances = [*text.rates(done.num_tokens)[: plan.num_head], *[text.recurs] * plan.num_found]
        missed = np.flatnonzero(rng.random(len(chances)) >= chances)
        num_accepted = int(missed[0]) if len(missed) else len(chances)
        follows = int(np.argmin([*(rng.random(16) < text.recurs), False]))
        if plan.num_head == 0:
            follows = num_accepted
        emitted = tuple(i if i < follows else 99 for i in range(num_accepted + 1))
        slow = slowness(index)
        rest_s = slow * (machine.verify_at(1 + len(chances), ask.context) + machine.fixed_s)
        draft_s = slow * plan.num_head * machine.draft_at(ask.context)
        policy.learn(Outcome(found, plan, plan.num_head, plan.num_found, (), emitted))
        policy.learn_time(RoundTime(ask.context, 1 + len(chances), plan.num_head, draft_s, rest_s))
        done.num_expected += expected_tokens(chances, len(chances))
        _count(done, plan, len(chances), len(emitted), draft_s + rest_s, num_tokens)
        index += 1
    return done


def _count(
    done: Run, plan: Plan, depth: int, num_emitted: int, taken_s: float, num_tokens: int
) -> None:
    done.depths[depth] += 1
    done.late[depth] += done.num_tokens >= num_tokens / 2
    done.reasons[plan.reason] += 1
    done.probed_s += taken_s if plan.reason == "probe" else 0.0
    done.total_s += taken_s
    done.num_tokens += num_emitted


def linear(
    first_s: float, row_s: float, step_s: float, *, context_s: float = 0.0, num_rows: int = 17
) -> CostCurve:
    """A machine whose rounds take so long for one row, for each further one, and for each token
    of the context and of the draft."""
    contexts = (1, 100_001)
    verify_s = tuple(
        tuple(first_s + context_s * context + row_s * i for i in range(num_rows))
        for context in (0, 100_000)
    )
    return CostCurve(contexts, verify_s, (step_s, step_s))


def auto(
    machine: CostCurve | None = None, priors: Priors = SHIPPED_PRIORS, *, kind: str = "apple, m4"
) -> AutoDepth:
    """A policy with a profile of this machine, or with what is shipped for a kind."""
    known = machine is not None
    return AutoDepth(Pace(machine or shipped_curve(kind), is_tuned=known), priors)


def static_rates(machine: CostCurve, rates: Sequence[float], context: int = 100) -> list[float]:
    """Tokens per second of each fixed depth."""
    return [expected_tokens(rates, k) / machine.round_s(k, context) for k in range(len(rates) + 1)]
