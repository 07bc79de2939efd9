"""How many tokens to draft this round. 0, an ordinary step, is always an answer."""

from collections.abc import Callable

from mtplx.stats import DecodeStats

DepthPolicy = Callable[[int, DecodeStats], int]
"""(tokens in the context, what happened so far in this request) -> draft length."""


def fixed_depth(depth: int) -> DepthPolicy:
    """The same draft length in every round."""

    def choose(context: int, stats: DecodeStats) -> int:
        return depth

    return choose
