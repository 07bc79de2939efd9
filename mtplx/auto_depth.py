"""The depth that is expected to be fastest, chosen anew before each round.

With a_i the chance that the head's token i is accepted where those before it were, and t(k) what a
round with k of them takes, a draft of k tokens gives

    E(k) = 1 + a_1 + a_1 a_2 + ... + a_1 ... a_k    tokens in    t(k)    seconds.

The best rate r = max E(k) / t(k) is what a second is worth. Tokens of an earlier passage, which the
head need not draft, are taken where they bring more than r times the time they take. Where the
head's probabilities are read step by step, each further token has to be as likely as that too, and
the draft ends before the first that is not.

k = 0 is one of the candidates. While it is the best, a draft is tried now and then, more and more
seldom, so that the head is found to be good again; while it is not, a plain round is, so that its
time is known. What such rounds lose is kept to a share of all time.
"""

from collections.abc import Iterator, Sequence

from mtplx.costs import Priors, expected_tokens
from mtplx.depth import MAX_DEPTH, Ask, Outcome, Plan
from mtplx.draft_gain import Gains, Rate
from mtplx.lookup import Continuation
from mtplx.pace import Pace, RoundTime
from mtplx.prospect import Prospect, prospect_of

PROBE_SHARE = 0.0075  # of all time, that probes may lose
_LONGEST_HEAD = MAX_DEPTH
_GRACE = 0.75  # of a plain round, that they may lose besides, so that short texts have some
_FIRST_WAIT = 4  # rounds between probes of a depth, at first
_LONGEST_WAIT = 64  # and at last; of one token more than the best, which costs less
_LONGEST_WAIT_DEEPER = 16
_BINS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

BEST, PLAIN, PASSAGE, PROBE = "best", "plain is faster", "passage found", "probe"


class AutoDepth:
    """The depths of one conversation.

    pace: how long rounds take; shared with other conversations on the same model.
    priors: how often drafts are accepted, before anything is known of this text.
    uses_clock: whether to learn how long rounds take. Without, the depths are a function of the
        text and of the curve that `pace` began with.
    """

    most = MAX_DEPTH

    def __init__(self, pace: Pace, priors: Priors, *, uses_clock: bool = True) -> None:
        self.pace, self._uses_clock = pace, uses_clock
        self._gains = Gains(priors)
        self._drawn = [Rate(1.0) for _ in range(_LONGEST_HEAD)]  # a token where the head may go on
        self._chances = [Rate(0.0) for _ in range(len(_BINS) + 1)]
        self._probes = _Probes()
        self._has_head = False
        self._prospect: Prospect | None = None

    def plan(self, ask: Ask) -> Plan:
        self._has_head = ask.has_head
        prospect = self._prospect = self._look_ahead(ask.context, ask.has_head)
        head = prospect.depth
        probed = self._probed(prospect, reads_chances=ask.reads_chances)
        if probed is not None:
            return self._limited(ask, Plan(probed, 0, PROBE), prospect)
        if head and ask.reads_chances:
            head = prospect.longest
        num_head, num_found = self._with_passage(ask.found, ask.most, head, prospect)
        if num_found:
            return self._limited(ask, Plan(num_head, num_found, PASSAGE), prospect)
        return self._limited(ask, Plan(head, 0, BEST if head else PLAIN), prospect)

    def plan_ahead(self, context: int, found: Continuation) -> Plan | None:
        """Plain, where it has just been and nothing is to be tried."""
        if self._prospect is None or self._prospect.depth > 0:
            return None
        prospect = self._prospect = self._look_ahead(context, self._has_head)
        if prospect.depth > 0 or self._probed(prospect, reads_chances=False) is not None:
            return None
        if self._with_passage(found, MAX_DEPTH, 0, prospect)[1] > 0:
            return None
        return Plan(0, 0, PLAIN)

    def chance(self, likely: float) -> float:
        """How often a token is accepted that the head holds as likely as this."""
        return self._chances[_bin(likely)].given(likely)

    def learn(self, outcome: Outcome) -> None:
        num_head, held = outcome.num_head, outcome.chances
        is_stopped = len(held) > num_head
        chances = [self.chance(likely) for likely in held]
        self._gains.learn(
            outcome.found, outcome.emitted, num_head, stopped=is_stopped, chances=chances
        )
        for position in range(min(num_head + is_stopped, _LONGEST_HEAD)):
            self._drawn[position].learn(position < num_head)
        for position, likely in enumerate(held[: min(num_head, len(outcome.emitted))]):
            self._chances[_bin(likely)].learn(position < outcome.num_accepted)
        self._count(outcome, chances)

    def learn_time(self, time: RoundTime) -> None:
        if self._uses_clock:
            self.pace.learn(time)

    def _count(self, outcome: Outcome, chances: Sequence[float]) -> None:
        """Keep account of what probes lose."""
        prospect = self._prospect
        if prospect is None:
            return
        plain_s, depth = prospect.rest_s[0], outcome.planned.num_head
        taken_s = prospect.round_s(outcome.num_head, outcome.num_found)
        if outcome.planned.reason != PROBE:
            self._probes.note(depth, taken_s / plain_s)
            return
        num_emitted = float(len(outcome.emitted))
        lost_s = taken_s - num_emitted / prospect.rate
        # Whether to try again soon goes by how likely its tokens were, where that is known.
        hoped = expected_tokens(chances, outcome.num_head) if chances else num_emitted
        pays = hoped / prospect.rate > taken_s
        longest = _LONGEST_WAIT_DEEPER if depth > prospect.depth > 0 else _LONGEST_WAIT
        self._probes.note_probe(depth, taken_s / plain_s, lost_s / plain_s, 1 if pays else longest)
        if prospect.depth == 0:
            self._gains.doubt()

    def _look_ahead(self, context: int, has_head: bool) -> Prospect:
        """What each depth is expected to bring."""
        pace = self.pace
        rest_s = pace.rest_s(context, 1 + MAX_DEPTH)
        step_s, first_s = pace.step_s(context), pace.first_s(context)
        accepted = self._gains.accepted(_LONGEST_HEAD) if has_head else []
        tokens, times, reached, drawn = [1.0], [rest_s[0]], 1.0, 1.0
        for i, rate in enumerate(accepted):
            reached *= rate
            tokens.append(tokens[-1] + reached)
            went_on, drawn = drawn, drawn * self._drawn[i].value
            draft_s = went_on * step_s if i else step_s + first_s
            times.append(times[-1] + draft_s + drawn * (rest_s[i + 1] - rest_s[i]))
        return prospect_of(tokens, times, accepted, rest_s, step_s, first_s)

    def _probed(self, prospect: Prospect, *, reads_chances: bool) -> int | None:
        """The depth that the next round is to try, if it is to try one.

        Where drafts end by themselves there are rounds of all lengths anyway.
        """
        if not self._has_head:
            return None
        for depth in self._rivals(prospect, reads_chances=reads_chances):
            lost_s = prospect.times[depth] - prospect.tokens[depth] / prospect.rate
            is_free = depth == 0 and self.pace.is_new  # once in a process, for all of its texts
            if is_free or self._probes.may_lose(lost_s / prospect.rest_s[0]):
                return depth
        return None

    def _rivals(self, prospect: Prospect, *, reads_chances: bool) -> Iterator[int]:
        """The depths of which it is time to learn more."""
        depth, last = prospect.depth, len(prospect.times) - 1
        if depth == 0:
            if self._probes.is_due(prospect.rival):
                yield prospect.rival
            return
        if self._uses_clock and self.pace.is_due(1):
            yield 0
        if not reads_chances and depth < last and self._probes.is_due(depth + 1):
            yield depth + 1

    def _with_passage(
        self, found: Continuation, room: int, head: int, prospect: Prospect
    ) -> tuple[int, int]:
        """The head's tokens and the passage's, where the passage is worth more than the head."""
        recurs = self._gains.recurrence(found, min(len(found.token_ids), room))
        best, most = (head, 0), 0.0  # the best depth is worth what it takes
        for num_head in range(min(head, room, len(prospect.reached) - 1) + 1):
            gained, reached = prospect.tokens[num_head], prospect.reached[num_head]
            for num_found, chance in enumerate(recurs[num_head:], 1):
                gained += reached * chance
                gain = gained - prospect.rate * prospect.round_s(num_head, num_found)
                if gain > most:
                    best, most = (num_head, num_found), gain
        return best

    def _limited(self, ask: Ask, plan: Plan, prospect: Prospect) -> Plan:
        """The plan within the room there is, and with what each of the head's tokens is to be."""
        num_head = min(plan.num_head, ask.most) if ask.has_head else 0
        num_found = min(plan.num_found, ask.most - num_head)
        if not ask.reads_chances or plan.reason == PROBE:
            return Plan(num_head, num_found, plan.reason)
        least = tuple(prospect.least(i) for i in range(num_head))
        asks = tuple(self._asks(i, least[i], prospect) for i in range(num_head))
        return Plan(num_head, num_found, plan.reason, least, asks)

    def _asks(self, position: int, least: float, prospect: Prospect) -> float:
        """How likely a token has to be to be reached for the head's time to pay."""
        if position == 0:
            return 0.0
        accepted = prospect.reached[position + 1] / prospect.reached[position]
        drawn = self._drawn[position].value
        return (least * drawn + prospect.rate * prospect.step_s) / accepted


class _Probes:
    """When to try a depth that is not the best, and what that has cost.

    Costs are in plain rounds of the time, so that a slow hour does not outweigh all that follows.
    """

    def __init__(self) -> None:
        self._index = 0  # of the round
        self._last: dict[int, int] = {}  # depth -> the round that last had it
        self._waits: dict[int, int] = {}  # depth -> rounds before it is tried again
        self._lost = self._total = 0.0

    def is_due(self, depth: int) -> bool:
        """Whether it is long enough ago that it was tried."""
        return self._index - self._last.get(depth, 0) >= self._waits.get(depth, _FIRST_WAIT)

    def may_lose(self, loss: float) -> bool:
        """Whether so much may be lost now."""
        return self._lost + loss <= PROBE_SHARE * self._total + _GRACE

    def note(self, depth: int, taken: float) -> None:
        """A round that was none."""
        self._index += 1
        self._last[depth] = self._index
        self._total += taken

    def note_probe(self, depth: int, taken: float, lost: float, longest_wait: int) -> None:
        """One that lost so much. longest_wait: rounds before the next, at most."""
        self.note(depth, taken)
        self._lost = max(self._lost + lost, 0.0)
        wait = max(2 * self._waits.get(depth, _FIRST_WAIT), _FIRST_WAIT)
        self._waits[depth] = min(wait, longest_wait)


def _bin(likely: float) -> int:
    return sum(likely >= edge for edge in _BINS)
