"""How many tokens to draft this round. 0, an ordinary step, is always an answer.

A policy is asked before each round and told afterwards what came of it. It goes by what has been
emitted and by what earlier rounds drafted and took, never by the tokens that are about to be
decided nor by random numbers that decide them, so no policy can change the distribution of a text.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mtplx.draft_gain import Gains
from mtplx.lookup import Continuation
from mtplx.pace import RoundTime

MAX_DEPTH = 16  # far deeper than drafting pays
# How likely a draft has to be to go on, where a policy does not say: about what a row more costs.
USUAL_STOP = 0.1


@dataclass(frozen=True, slots=True)
class Ask:
    """What is known before a round.

    context: tokens before it, the pending one included. most: that may be drafted.
    found: what followed when the last tokens stood in the text before.
    has_head: whether a head is there to draft. reads_chances: its probabilities are read step by
        step, so that a draft can end where the next token is unlikely.
    """

    context: int
    most: int
    found: Continuation
    has_head: bool
    reads_chances: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """How many tokens the head drafts, then how many of the passage follow, and why.

    least: for each token of the head, how likely it has to be to be reached and accepted; the
        draft ends before one that is less. Empty leaves that to the request's options.
    asks: for each of them, how likely it has to be to be reached for the head to be asked at all.
    """

    num_head: int = 0
    num_found: int = 0
    reason: str = "asked for"
    least: tuple[float, ...] = ()
    asks: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a round.

    found, planned: as they were before it. num_head, num_found: tokens that were in fact drafted.
    chances: how likely the head held each of its tokens, where that was read; one more than
        num_head where it ended the draft. emitted: the accepted tokens and the one after them.
    """

    found: Continuation
    planned: Plan
    num_head: int
    num_found: int
    chances: tuple[float, ...]
    emitted: tuple[int, ...]

    @property
    def num_accepted(self) -> int:
        return len(self.emitted) - 1


@runtime_checkable
class DepthPolicy(Protocol):
    """How deep the rounds of a text are drafted."""

    @property
    def most(self) -> int:
        """The longest draft that it may ever plan; below 1 is plain decoding."""

    def plan(self, ask: Ask) -> Plan:
        """The next round's draft; ask.most is above 0."""

    def plan_ahead(self, context: int, found: Continuation) -> Plan | None:
        """A plain round, if the next one is to be that whatever token comes before it.

        context: tokens before it, with that one. found: the passage that the text without it
        goes on like.
        """

    def chance(self, likely: float) -> float:
        """How often a token is accepted that the head holds as likely as this."""

    def learn(self, outcome: Outcome) -> None:
        """Take in what came of a round."""

    def learn_time(self, time: RoundTime) -> None:
        """Take in what that round took."""


class FixedDepth:
    """The same draft length in every round, whoever drafts it. The clock takes no part."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._gains = Gains()

    @property
    def most(self) -> int:
        return self._depth

    def plan(self, ask: Ask) -> Plan:
        num_tokens = min(self._depth, ask.most)
        return Plan(*self._gains.plan(num_tokens, ask.found, head=ask.has_head))

    def plan_ahead(self, context: int, found: Continuation) -> Plan | None:
        return Plan() if self._depth < 1 else None

    def chance(self, likely: float) -> float:
        return likely

    def learn(self, outcome: Outcome) -> None:
        self._gains.learn(outcome.found, outcome.emitted, outcome.num_head)

    def learn_time(self, time: RoundTime) -> None:
        pass


def fixed_depth(depth: int) -> DepthPolicy:
    """The same draft length in every round; below 1 is plain decoding."""
    return FixedDepth(depth)
