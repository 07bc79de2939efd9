"""How the head should choose its tokens: estimated from rows that are there anyway.

Behind a round lie the target's distribution p and the head's logits at each position it drafted.
From these follows how likely a token of any mode would have been accepted there, p(argmax q) for a
greedy one and the sum of min(p, q) for a drawn one, whichever of them was in fact drafted.
"""

import math
from collections import deque
from collections.abc import Sequence
from statistics import fmean, pvariance

import mlx.core as mx

_MEMORY = 32  # rounds that a choice looks back on
_PATIENCE = 4  # rounds before the first change
_MARGIN = 0.01  # share of the tokens per round by which another mode has to be better
_CHANCE = 1.5  # standard errors by which it has to be better too
_EAGER = 16  # rounds at the beginning that are all looked at
_STRIDE = 4  # of later rounds, one in so many is


class ModeChoice:
    """The mode of one request, and what is known of its alternatives."""

    def __init__(self, modes: Sequence[str]) -> None:
        self.modes = tuple(modes)
        self.mode = self.modes[0]
        self._accepted: deque[list[float]] = deque(maxlen=_MEMORY)  # [round][mode], expected
        self._num_rounds = 0

    @property
    def wants_estimates(self) -> bool:
        """Whether this round is to be looked at."""
        if len(self.modes) < 2:
            return False
        return self._num_rounds < _EAGER or self._num_rounds % _STRIDE == 0

    def learn(self, estimates: Sequence[Sequence[float]], num_reached: int) -> None:
        """Take in a round: estimates [mode][position], and how many positions it reached.

        What is behind the first refused token belongs to a text that is not written.
        """
        self._num_rounds += 1
        accepted = [sum(row[:num_reached]) for row in estimates]
        if accepted and all(0 <= x < math.inf for x in accepted):  # not where a head is broken
            self._accepted.append(accepted)
            self._choose()

    def _choose(self) -> None:
        """Change the mode where another is better by a margin, and by more than chance."""
        if len(self._accepted) < _PATIENCE:
            return
        current = self.modes.index(self.mode)
        least = _MARGIN * (1 + fmean(row[current] for row in self._accepted))
        for i, mode in enumerate(self.modes):
            gains = [row[i] - row[current] for row in self._accepted]
            gain, error = fmean(gains), math.sqrt(pvariance(gains) / len(gains))
            if gain > max(least, _CHANCE * error):
                self.mode, least = mode, gain


def greedy_rates(p: mx.array, logits: mx.array) -> mx.array:
    """[J], how likely the most probable token of the head is accepted: p, logits [J, S]."""
    best = mx.argmax(logits, axis=-1, keepdims=True)
    return mx.take_along_axis(p, best, axis=-1)[:, 0]


def sampled_rates(p: mx.array, q: mx.array) -> mx.array:
    """[J], how likely a token drawn from q is accepted: p, q [J, S] over the same tokens."""
    return mx.sum(mx.minimum(p, q), axis=-1)


def coupled_rates(p: mx.array, q: mx.array) -> mx.array:
    """[J], about how likely p and q choose the same token by the same noise.

    With m the sum of min(p, q) that is between m / (2 - m) and m; random rows of either shape and
    likeness have it here.
    """
    shared = sampled_rates(p, q)
    return shared / (1 + 0.4 * (1 - shared))
