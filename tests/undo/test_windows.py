"""The cache of a sliding window, against a list of all rows."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtplx.cache import STEP, WindowCache
from mtplx.cache.window import ROOM
from mtplx.errors import RollbackError

Passes = list[tuple[int, int]]
"""(rows of a pass, how many of them are kept), one after the other"""


def rows(start: int, count: int) -> mx.array:
    """[1, 2, count, 3], each row filled with its position and a head's sign."""
    positions = mx.arange(start, start + count, dtype=mx.float32)[None, None, :, None]
    return mx.broadcast_to(positions * mx.array([1.0, -1.0])[:, None, None], (1, 2, count, 3))


def passed(cache: WindowCache, count: int) -> None:
    """A pass whose every row sees, through the mask, its own position and the window before."""
    start = cache.offset
    mask = cache.make_mask(count)
    keys, values = cache.update_and_fetch(rows(start, count), 2 * rows(start, count))
    first = start + count - keys.shape[2]
    assert mx.array_equal(keys, rows(first, keys.shape[2]))
    assert mx.array_equal(values, 2 * keys)
    positions, own = np.arange(first, start + count), np.arange(start, start + count)[:, None]
    expected = (positions <= own) & (positions > own - cache.window)
    assert expected.sum(axis=1).tolist() == [min(p + 1, cache.window) for p in own[:, 0].tolist()]
    if isinstance(mask, mx.array):
        assert np.array_equal(np.array(mask), expected)
    else:
        assert mask == ("causal" if count > 1 else None)
        assert np.array_equal(positions <= own, expected)


def after(passes: Passes, window: int) -> WindowCache:
    cache = WindowCache(window, "layers.3")
    for count, kept in passes:
        start = cache.offset
        passed(cache, count)
        cache.check(start, count)
        cache.keep(kept)
        assert cache.offset == start + kept
    return cache


PASSES = st.lists(
    st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), max_size=20
)


@settings(max_examples=60, deadline=None)
@given(passes=PASSES, window=st.integers(1, 20))
def test_every_row_sees_its_window_whatever_was_undone(passes: Passes, window: int) -> None:
    """Blocks and single rows in any order, any part kept, prompts longer than the window."""
    after(passes, window)


@pytest.mark.parametrize("kept", range(6))
@pytest.mark.parametrize("before", [3, 11, 12, 13, STEP - 2, STEP, 3 * STEP])
def test_blocks_across_every_edge(before: int, kept: int) -> None:
    """Of the window, and of the buffer, which moves there."""
    after([(before, before), (5, kept), (1, 1), (5, kept)], window=12)


def test_rows_behind_the_window_are_given_up() -> None:
    """Memory is bounded by the window, whatever the length of the text."""
    cache = WindowCache(12)
    for _ in range(40):
        passed(cache, 100)
    bound = 12 + ROOM + 100 + STEP
    assert cache.num_bytes <= 2 * 2 * 3 * 4 * bound
    assert cache.offset == 4000


@pytest.mark.parametrize("back", [0, 1, ROOM])
def test_it_goes_back_some_rows_at_any_time(back: int) -> None:
    """As many as stay behind the window."""
    cache = after([(500, 500)] + [(1, 1)] * 300, window=12)
    assert cache.reaches(800 - back)
    cache.rewind(800 - back)
    passed(cache, 5)


def test_going_back_further_is_refused_by_name() -> None:
    """And it says so before; the beginning can always be gone back to."""
    cache = after([(500, 500)] + [(1, 1)] * 300, window=12)
    assert not cache.reaches(400)
    with pytest.raises(RollbackError, match=r"layers\.3: cannot go back to 400 of 800"):
        cache.rewind(400)
    cache.rewind(0)
    passed(cache, 30)


@settings(max_examples=30, deadline=None)
@given(passes=PASSES, further=PASSES, window=st.integers(1, 20), whole=st.booleans())
def test_a_snapshot_brings_it_back(
    passes: Passes, further: Passes, window: int, whole: bool
) -> None:
    """Into another cache too, and what either does later does not touch it."""
    cache = after(passes, window)
    snapshot, length = cache.snapshot(whole=whole), cache.offset
    before = [np.array(array) for array in snapshot.arrays]
    for count, kept in further:
        passed(cache, count)
        cache.keep(kept)
    other = WindowCache(window)
    for restored in (cache, other):
        restored.restore(snapshot)
        assert restored.offset == length
        passed(restored, 3)
    assert all(np.array_equal(a, b) for a, b in zip(before, snapshot.arrays, strict=True))


def test_a_narrower_mask_is_given() -> None:
    """Of a layer that sees less than its cache holds, for one row and for several."""
    cache = after([(20, 20)], window=12)
    mask = cache.make_mask(1, window_size=4)
    assert isinstance(mask, mx.array)
    assert np.array(mask).tolist() == [[False] * 8 + [True] * 4]
    array = cache.make_mask(2, window_size=4)
    assert isinstance(array, mx.array)
    assert np.array(array).sum() == 8
