"""Attention state of which a pass sees the first rows and the last."""

import mlx.core as mx
import numpy as np
import pytest

from mtplx.cache import SinkCache
from mtplx.cache.sinks import SINKS
from tests.tiny import close

WINDOW, LENGTH = 6, 30


def random_rows(num_rows: int, seed: int) -> mx.array:
    return mx.random.normal((1, 2, num_rows, 8), key=mx.random.key(seed))


def attended(blocks: list[int]) -> mx.array:
    """What the queries of consecutive passes find, [1, 2, T, 8]."""
    cache, start, found = SinkCache(window=WINDOW), 0, []
    q, k, v = (random_rows(LENGTH, seed) for seed in range(3))
    for length in blocks:
        rows = slice(start, start + length)
        mask = cache.make_mask(length)
        keys, values = cache.update_and_fetch(k[:, :, rows], v[:, :, rows])
        found.append(
            mx.fast.scaled_dot_product_attention(q[:, :, rows], keys, values, scale=1.0, mask=mask)
        )
        start += length
    return mx.concatenate(found, axis=2)


def expected() -> mx.array:
    """The same in one pass over everything, under a mask that is written out."""
    q, k, v = (random_rows(LENGTH, seed) for seed in range(3))
    seen = np.zeros((LENGTH, LENGTH), bool)
    for row in range(LENGTH):
        for column in range(row + 1):
            seen[row, column] = column < SINKS or row - column < WINDOW
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=1.0, mask=mx.array(seen))


@pytest.mark.parametrize("blocks", [[LENGTH], [1] * LENGTH, [2, 1, 5, 9, 1, 12], [3] * 10], ids=str)
def test_rows_see_the_sinks_and_the_window_however_they_are_passed(blocks: list[int]) -> None:
    """In one pass, one by one, and in blocks across every edge."""
    assert close(attended(blocks), expected())


def test_a_single_row_reads_no_more_than_it_sees() -> None:
    """What a draft step fetches does not grow with the text."""
    cache = SinkCache(window=WINDOW)
    cache.update_and_fetch(random_rows(LENGTH, 0), random_rows(LENGTH, 1))
    keys, values = cache.update_and_fetch(random_rows(1, 2), random_rows(1, 3))
    assert keys.shape[2] == values.shape[2] == SINKS + WINDOW
    assert cache.offset == LENGTH + 1
