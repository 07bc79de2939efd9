"""What the head and an earlier passage are expected to bring, by what they brought.

Of the head it is counted how many of its tokens were accepted, per position. Of a passage that
recurs it is counted how far the text went on like the earlier one, whether that was drafted or not:
a token that is drafted from it is accepted exactly as often as the target would choose it anyway.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mtplx.costs import Priors
from mtplx.lookup import MIN_MATCH, Continuation

# In accepted tokens. They are constants, since a choice by the clock would make a seed give
# another text each time.
_STEP_COST = 0.08  # of a token that the head drafts, which is a pass through the head
_ROW_COST = 0.1  # of a row more to verify, where plain decoding is the alternative
# Recurrences are told apart by their length: up to these, and above. In 36 recorded replies of
# the default model 0.59, 0.83, 0.92, 0.96 and 0.96 of them went on.
_LONG_MATCHES = (3, 5, 8, 16)
_EXPECTED = (0.5, 0.7, 0.85, 0.85, 0.85)  # how often the next token recurs too, at first
_EVEN: Mapping[str, tuple[float, ...]] = {"": (0.5,)}
_LEAST = 1e-3  # of a class's weight, so that a text may become another
_CARRIED = 0.8  # of what is learnt at a position, that is expected at the next as well
_MOST = 64  # outcomes that count, before the older half of them is forgotten
_FEW = 6  # outcomes that old ones count for
_PRIOR = 4  # outcomes that an expectation counts for
_STEADY = 24  # that it counts for against good ones of a recurrence


@dataclass(slots=True)
class Rate:
    """A share that is being learnt: at first as `expected`, later that of about 64 outcomes."""

    expected: float
    hits: float = 0.0
    num: float = 0.0

    def learn(self, hit: float) -> None:
        """hit: 1 or 0, or how likely it was, which says more."""
        self.hits += hit
        self.num += 1
        if self.num > _MOST:
            self.hits, self.num = self.hits / 2, self.num / 2

    def fade(self) -> None:
        """Count all outcomes so far like a few."""
        if self.num > _FEW:
            self.hits, self.num = self.hits * _FEW / self.num, float(_FEW)

    @property
    def value(self) -> float:
        return self.given(self.expected)

    def given(self, expected: float, prior: int = _PRIOR) -> float:
        """The share, if it was expected to be this before anything was seen.

        prior: outcomes that the expectation counts for.
        """
        return (self.hits + prior * expected) / (self.num + prior)


class Gains:
    """What is known of one text's sources of drafts.

    priors: how often the head is accepted at first, by class of content; which class this is, the
        outcomes tell.
    """

    def __init__(self, priors: Priors = _EVEN) -> None:
        self._kinds = Kinds(priors)
        self._head: list[Rate] = []  # per position, given that those before it were accepted
        self._passages = [Rate(expected) for expected in _EXPECTED]

    def plan(self, num_tokens: int, found: Continuation, *, head: bool) -> tuple[int, int]:
        """How many tokens the head and then the passage should draft, together `num_tokens`.

        Without a head fewer where the rest would not pay.
        """
        chances = self.recurrence(found, num_tokens)
        if not head:
            return 0, sum(chance >= _ROW_COST for chance in chances)
        reached, gained = 1.0, 0.0
        best, most = num_tokens, -1.0
        for num_head, accepted in enumerate([*self.accepted(num_tokens), 0.0]):
            total = gained + reached * sum(chances[num_head:]) - _STEP_COST * num_head
            if (found.token_ids or num_head == num_tokens) and total >= most:
                best, most = num_head, total
            reached *= accepted
            gained += reached
        return best, num_tokens - best

    def accepted(self, num_tokens: int) -> list[float]:
        """How likely each token of a head's draft is accepted where those before it were.

        Where a token is accepted more often than was expected, so will the next one be.
        """
        self._reach(num_tokens)
        values, more = [], 0.0
        for position, rate in enumerate(self._head[:num_tokens]):
            expected = self._kinds.expected(position)
            value = rate.given(_share(expected + _CARRIED * more))
            more = value - expected
            values.append(value)
        return values

    def recurrence(self, found: Continuation, num_tokens: int) -> list[float]:
        """How likely the text goes on like the passage for 1, 2, ... tokens.

        Each token that recurs makes the match longer, and the next one likelier. What goes on well
        teaches little, since it will end; what ends teaches at once.
        """
        chances, reached = [], 1.0
        for i in range(min(num_tokens, len(found.token_ids))):
            rate = self._passage(found.num_matched + i)
            reached *= min(rate.value, rate.given(rate.expected, _STEADY))
            chances.append(reached)
        return chances + [0.0] * (num_tokens - len(chances))

    def learn(
        self,
        found: Continuation,
        emitted: Sequence[int],
        num_head: int,
        *,
        stopped: bool = False,
        chances: Sequence[float] = (),
    ) -> None:
        """Take in a round: the accepted tokens and one more, and how many the head drafted.

        stopped: the head was to draft more and held it unlikely, which counts like a refusal.
        chances: how likely each of the head's was to be accepted, where that was read. What came
            of it is one throw of such a die and counts for a third: bad luck is not taken for more,
            and a head that is sure and wrong is found out.
        """
        num_seen = min(len(emitted), num_head + stopped)
        self._reach(num_seen)
        for position in range(num_seen):
            outcome = float(position < min(len(emitted) - 1, num_head))
            if position < min(num_head, len(chances)):
                outcome = (outcome + 2 * chances[position]) / 3
            self._kinds.learn(position, outcome)
            self._head[position].learn(outcome)
        for i, (proposed, token_id) in enumerate(zip(found.token_ids, emitted, strict=False)):
            self._passage(found.num_matched + i).learn(proposed == token_id)
            if proposed != token_id:
                return

    def doubt(self) -> None:
        """Hold what is known of the head for old: a few outcomes may change it."""
        for rate in self._head:
            rate.fade()

    def _reach(self, num_positions: int) -> None:
        self._head += [Rate(0.5) for _ in range(num_positions - len(self._head))]

    def _passage(self, num_matched: int) -> Rate:
        """How often the next token recurs too where so many did."""
        assert num_matched >= MIN_MATCH
        return self._passages[sum(num_matched > length for length in _LONG_MATCHES)]


class Kinds:
    """Which class of content a text belongs to, told by which drafts are accepted in it."""

    def __init__(self, priors: Priors) -> None:
        self._rates = tuple(priors.values())
        self._weights = [1 / len(self._rates)] * len(self._rates)
        self._expected: list[float] = []  # by position, while the weights stay

    def expected(self, position: int) -> float:
        """How likely a draft is accepted there, before it is known of this text itself."""
        if not self._expected:
            by_class = list(zip(self._weights, self._rates, strict=True))
            self._expected = [
                _share(sum(weight * _at(rate, i) for weight, rate in by_class))
                for i in range(max(map(len, self._rates)))
            ]
        return _at(self._expected, position)

    def learn(self, position: int, accepted: float) -> None:
        """accepted: whether it was, or how likely that was."""
        likely = [_at(rate, position) for rate in self._rates]
        weights = [
            max(weight * rate**accepted * (1 - rate) ** (1 - accepted), _LEAST)
            for weight, rate in zip(self._weights, likely, strict=True)
        ]
        total = sum(weights)
        self._weights = [weight / total for weight in weights]
        self._expected = []


def _share(value: float) -> float:
    return min(max(value, 0.02), 0.98)


def _at(rates: Sequence[float], position: int) -> float:
    """Beyond what is known it goes on as at the end."""
    return rates[min(position, len(rates) - 1)]
