"""The figures of several requests as one."""

from collections import Counter
from dataclasses import fields, replace
from itertools import zip_longest

from mtplx.stats import DecodeStats


def add_stats(totals: DecodeStats, stats: DecodeStats) -> None:
    """Add the counts and times of one request to those of several, whatever they are."""
    _add(totals, stats)


def _add(totals: object, more: object) -> None:
    for counted in fields(totals):  # type: ignore[arg-type]  # called with records only
        both = getattr(totals, counted.name), getattr(more, counted.name)
        setattr(totals, counted.name, _sum(*both))


def _sum(before: object, more: object) -> object:
    if isinstance(before, Counter) and isinstance(more, Counter):
        return before + more
    if isinstance(before, list) and isinstance(more, list):
        return [a + b for a, b in zip_longest(before, more, fillvalue=0)]
    if isinstance(before, dict) and isinstance(more, dict):
        summed = {name: replace(count) for name, count in before.items()}
        for name, count in more.items():
            if name in summed:
                _add(summed[name], count)
            else:
                summed[name] = replace(count)
        return summed
    if isinstance(before, int | float) and isinstance(more, int | float):
        return before + more
    return more
