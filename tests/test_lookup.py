"""Continuations of earlier passages, against a search of the whole text."""

from itertools import pairwise

import numpy as np
import pytest

from mtplx.lookup import MIN_MATCH, Continuation, LookupIndex


def text_of(length: int, vocab_size: int, seed: int) -> list[int]:
    rng = np.random.default_rng([seed, length, vocab_size])
    return [int(x) for x in rng.integers(vocab_size, size=length)]


def by_search(text: list[int], count: int) -> Continuation:
    """The longest recurrence, the latest of equally long ones, of at most 32 tokens."""
    end = len(text)
    best, longest = 0, MIN_MATCH - 1
    for place in range(end - 1, 0, -1):
        length = 0
        while length < min(32, place) and text[place - 1 - length] == text[end - 1 - length]:
            length += 1
        if length > longest:
            best, longest = place, length
    if not best:
        return Continuation()
    period = end - best
    return Continuation(tuple(text[best + i % period] for i in range(count)), longest)


@pytest.mark.parametrize("vocab_size", [2, 4, 1000, 2**21])
def test_the_longest_and_latest_recurrence_is_found(vocab_size: int) -> None:
    """While a text grows in steps of any size, the continuation is that of a full search."""
    rng = np.random.default_rng(vocab_size)
    text, index = text_of(5, vocab_size, 0), LookupIndex()
    for step in range(60):
        if step % 3 == 0 and len(text) > 12:
            start = int(rng.integers(len(text) - 9))
            text += text[start : start + 9]
        text += text_of(int(rng.integers(1, 4)), vocab_size, step)
        index.extend(text)
        expected, found = by_search(text, 4), index.find(text, 4)
        if vocab_size > 4:  # else more places recur than are compared
            assert found == expected
        assert MIN_MATCH <= found.num_matched <= expected.num_matched or found == expected


def test_a_run_that_repeats_goes_on_with_its_period() -> None:
    """Where the earlier occurrence reaches into the end, what follows is the period again."""
    text = [9, 1, 2, 1, 2, 1, 2, 1]
    index = LookupIndex()
    index.extend(text)
    assert index.find(text, 5).token_ids == (2, 1, 2, 1, 2)


@pytest.mark.parametrize("text", [[], [1], [1, 1], [1, 1, 1], [1, 2, 3], [1, 2, 3, 4, 5]])
def test_a_text_without_a_recurrence_has_no_continuation(text: list[int]) -> None:
    """Also one that is shorter than what has to recur."""
    index = LookupIndex()
    index.extend(text)
    assert index.find(text, 3) == Continuation()


def test_nothing_wanted_is_nothing_found() -> None:
    """No continuation of no tokens."""
    index = LookupIndex()
    index.extend([1, 2, 3, 4] * 3)
    assert index.find([1, 2, 3, 4] * 3, 0) == Continuation()


def test_memory_is_bounded_and_the_latest_part_is_found() -> None:
    """However long the text, no more than twice the capacity is held, and one capacity is."""
    index, text = LookupIndex(capacity=64), list[int]()
    lengths = [*range(1, 700, 7), 1500, 1501, 3000]
    everything = [int(x) for x in np.random.default_rng(0).permutation(5000)]
    for before, after in pairwise([0, *lengths]):
        text += everything[before:after]
        index.extend(text)
        assert len(index._before) <= 128
        assert len(index._last) <= 128
    near = text + text[-60:-56]
    index.extend(near)
    assert index.find(near, 2).token_ids == tuple(text[-56:-54])
    far = near + text[:4]
    index.extend(far)
    assert index.find(far, 2) == Continuation()
