"""Replies of the default model, written again without it: `python -m tests.recorded_replies`.

tests/assets/recorded-replies.npz, which `python -m benchmarks.record_replies` makes, holds greedy
replies and, at each place of them, what the head drafts there: how likely it holds its tokens, and
how many of them the text has. With a machine's times by rows any policy can write them again, with
no noise but that of the texts. Texts are real here, so drafts are accepted as unevenly as they are.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mtplx.auto_depth import AutoDepth
from mtplx.costs import CostCurve
from mtplx.depth import MAX_DEPTH, USUAL_STOP, Ask, DepthPolicy, FixedDepth, Outcome, Plan
from mtplx.lookup import Continuation, LookupIndex
from mtplx.pace import Pace, RoundTime
from mtplx.shipped_costs import SHIPPED_PRIORS, shipped_curve

PATH = Path(__file__).parent / "assets" / "recorded-replies.npz"
MAX_TOKENS = 96  # of a recorded reply
DEEPEST = 7  # of the fixed depths
_NOTHING = Continuation()


@dataclass(frozen=True, slots=True)
class Reply:
    """One greedy reply.

    held: [N][J], how likely the head held each token that it drafts at a place of the text.
    accepted: [N], how many of these the text has.
    """

    kind: str
    prompt: list[int]
    text: list[int]
    held: list[list[float]]
    accepted: list[int]


@dataclass(frozen=True, slots=True)
class Machine:
    """Times in plain rounds.

    kind: the curve that is shipped for it. step_s: of a drafted token. first_s: of the first more.
    """

    name: str
    kind: str
    rest_s: tuple[float, ...]
    step_s: float
    first_s: float = 0.0

    def round_s(self, num_rows: int) -> float:
        return self.curve.verify_at(num_rows, 1)

    def draft_s(self, num_steps: int) -> float:
        return num_steps * self.step_s + (self.first_s if num_steps else 0.0)

    @property
    def curve(self) -> CostCurve:
        return CostCurve((1,), (self.rest_s,), (self.step_s,))


MACHINES = (
    # The default model on two cores of a Xeon by `mtplx bench`, 2026-12-01; MKL works in threes.
    Machine("cpu", "cpu", (1.0, 1.15, 1.27, 1.75, 1.83, 1.92, 2.37, 2.37, 2.45, 2.9), 0.06, 0.06),
    # What is shipped for these, see mtplx/shipped_costs.py.
    *(
        Machine(kind, kind, shipped_curve(kind).verify_s[0], 0.06)
        for kind in ("apple, m3", "apple, m4", "apple, ultra", "cuda")
    ),
)


def recorded() -> list[Reply]:
    """All that was recorded."""
    with np.load(PATH) as stored:
        kinds, lengths = stored["kinds"].tolist(), stored["lengths"].tolist()
        columns = [stored[name] for name in ("prompt", "text", "held", "accepted")]
    replies, starts = [], [0, 0]
    for kind, (num_prompt, num_text) in zip(kinds, lengths, strict=True):
        before, there = (
            slice(i, i + n) for i, n in zip(starts, (num_prompt, num_text), strict=True)
        )
        starts = [before.stop, there.stop]
        prompt, text, held, accepted = (
            column[part].tolist()
            for column, part in zip(columns, (before, there, there, there), strict=True)
        )
        replies.append(
            Reply(kind, prompt, text, [[x / 100 for x in row] for row in held], accepted)
        )
    return replies


@dataclass(slots=True)
class _Writing:
    """One reply while it is written again: taken_s so far."""

    reply: Reply
    policy: DepthPolicy
    machine: Machine
    index: LookupIndex = field(default_factory=LookupIndex)
    tokens: list[int] = field(default_factory=list)
    taken_s: float = 0.0

    def to_its_end(self) -> float:
        reply = self.reply
        self.tokens = list(reply.prompt)
        ahead: Plan | None = None
        while (place := len(self.tokens) - len(reply.prompt)) < len(reply.text):
            most = min(self.policy.most, MAX_TOKENS - place - 1)
            found = self._found(most) if ahead is None else _NOTHING
            plan = ahead or self._plan(most, found)
            ahead = None
            held, num_head = self._head(plan, place)
            num_found = len(found.token_ids[num_head : plan.num_head + plan.num_found])
            num_found = num_found if plan.num_found else 0
            num_accepted = self._accepted(found, place, num_head, num_found)
            if not num_head + num_found and most > 0:
                ahead = self.policy.plan_ahead(len(self.tokens) + 1, self._found(MAX_DEPTH))
            self._learn(plan, found, held, num_head, num_found, num_accepted)
        return self.taken_s

    def _found(self, most: int) -> Continuation:
        self.index.extend(self.tokens)
        return self.index.find(self.tokens, most)

    def _plan(self, most: int, found: Continuation) -> Plan:
        if most < 1:
            return Plan()
        return self.policy.plan(Ask(len(self.tokens), most, found, True, True))

    def _head(self, plan: Plan, place: int) -> tuple[list[float], int]:
        """How likely it held what it was asked for, and how much of it is drafted."""
        held: list[float] = []
        chances: list[float] = []
        least = plan.least or (USUAL_STOP,) * plan.num_head
        for step in range(min(plan.num_head, len(self.reply.held[place]))):
            if plan.asks and math.prod(chances) < plan.asks[step]:
                return held, step
            held.append(self.reply.held[place][step])
            chances.append(self.policy.chance(held[-1]))
            if math.prod(chances) < least[step]:
                return held, step
        return held, len(held)

    def _accepted(self, found: Continuation, place: int, num_head: int, num_found: int) -> int:
        right = min(self.reply.accepted[place], num_head)
        if right < num_head:
            return right
        passage = found.token_ids[num_head : num_head + num_found]
        follows = self.reply.text[place + num_head : -1]
        for proposed, token_id in zip(passage, follows, strict=False):
            if proposed != token_id:
                break
            right += 1
        return min(right, len(self.reply.text) - place - 1)

    def _learn(
        self,
        plan: Plan,
        found: Continuation,
        held: list[float],
        num_head: int,
        num_found: int,
        num_accepted: int,
    ) -> None:
        place, context = len(self.tokens) - len(self.reply.prompt), len(self.tokens)
        emitted = self.reply.text[place : place + num_accepted + 1]
        outcome = Outcome(found, plan, num_head, num_found, tuple(held), tuple(emitted))
        rows, draft_s = 1 + num_head + num_found, self.machine.draft_s(len(held))
        rest_s = self.machine.round_s(rows)
        self.policy.learn(outcome)
        self.policy.learn_time(RoundTime(context, rows, len(held), draft_s, rest_s))
        self.taken_s += draft_s + rest_s
        self.tokens += emitted


def written_s(reply: Reply, policy: DepthPolicy, machine: Machine) -> float:
    """What it takes to write a reply so, in plain rounds."""
    return _Writing(reply, policy, machine).to_its_end()


@dataclass(frozen=True, slots=True)
class Speeds:
    """Tokens in the time of a plain round, of all replies of a kind."""

    kind: str
    fixed: tuple[float, ...]
    auto: float

    @property
    def over_best(self) -> float:
        """Auto's over that of the depth that turns out to be the best for these."""
        return self.auto / max(self.fixed)


def speeds(replies: Sequence[Reply], machine: Machine) -> list[Speeds]:
    """Of each kind of reply, and at last of all. Nothing is known of the machine at first."""
    pace = Pace(shipped_curve(machine.kind))
    policies: list[Callable[[], DepthPolicy]] = [
        *(lambda depth=depth: FixedDepth(depth) for depth in range(DEEPEST + 1)),
        lambda: AutoDepth(pace, SHIPPED_PRIORS),
    ]
    taken = [[written_s(reply, make(), machine) for make in policies] for reply in replies]
    kinds = list(dict.fromkeys(reply.kind for reply in replies))
    chosen = {kind: [i for i, reply in enumerate(replies) if reply.kind == kind] for kind in kinds}
    chosen["all"] = list(range(len(replies)))
    return [
        _speeds(kind, (replies[i] for i in of), [taken[i] for i in of])
        for kind, of in chosen.items()
    ]


def _speeds(kind: str, replies: Iterable[Reply], taken: list[list[float]]) -> Speeds:
    num_tokens = sum(len(reply.text) for reply in replies)
    *fixed, auto = (num_tokens / sum(column) for column in zip(*taken, strict=True))
    return Speeds(kind, tuple(fixed), auto)


def main() -> None:
    """Print the best fixed depth, auto's speed and auto's over that one's, by kind and machine."""
    replies = recorded()
    columns = [speeds(replies, machine) for machine in MACHINES]
    print(" " * 20 + "".join(f"{machine.name:>20}" for machine in MACHINES))
    for row in zip(*columns, strict=True):
        cells = (f"{f.fixed.index(max(f.fixed)):6}{f.auto:7.2f}{f.over_best:7.2f}" for f in row)
        print(f"{row[0].kind:20}" + "".join(cells))


if __name__ == "__main__":
    main()
