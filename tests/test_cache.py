import mlx.core as mx
import numpy as np
import pytest

from mtplx.cache import STEP, AttentionCache
from mtplx.errors import RollbackError


def rows(start: int, count: int) -> mx.array:
    """[1, 2, count, 3], each row filled with its position and a head's sign."""
    positions = mx.arange(start, start + count, dtype=mx.float32)[None, None, :, None]
    return mx.broadcast_to(positions * mx.array([1.0, -1.0])[:, None, None], (1, 2, count, 3))


def filled(*passes: int) -> AttentionCache:
    cache = AttentionCache("blk.7.attn")
    for count in passes:
        cache.update_and_fetch(rows(cache.offset, count), rows(cache.offset, count))
    return cache


def appended(cache: AttentionCache, value: float) -> mx.array:
    """What one more row of this value makes of the keys."""
    row = mx.full((1, 2, 1, 3), value)
    keys, values = cache.update_and_fetch(row, row)
    assert mx.array_equal(keys, values)
    return keys


@pytest.mark.parametrize(
    "passes",
    [(1,), (STEP - 1, 1, 1), (STEP,), (STEP + 1,), (1, STEP), (3, 700, 1), (STEP, STEP, 1)],
)
def test_every_row_comes_back_in_order(passes: tuple[int, ...]) -> None:
    """Whatever passes they came in, and wherever the buffers had to grow."""
    cache = AttentionCache()
    for count in passes:
        new = rows(cache.offset, count)
        keys, values = cache.update_and_fetch(new, 2 * new)
        assert mx.array_equal(keys, rows(0, cache.offset))
        assert mx.array_equal(values, 2 * rows(0, cache.offset))
    assert cache.offset == sum(passes)


def test_buffers_grow_by_steps() -> None:
    """Memory is a whole number of steps, whatever the length of the passes."""
    row_bytes = 2 * 2 * 3 * 4
    assert AttentionCache().num_bytes == 0
    assert filled(1).num_bytes == STEP * row_bytes
    assert filled(STEP).num_bytes == STEP * row_bytes
    assert filled(STEP, 1).num_bytes == 2 * STEP * row_bytes
    assert filled(5, 2 * STEP).num_bytes == 3 * STEP * row_bytes


@pytest.mark.parametrize("kept", range(8))
@pytest.mark.parametrize("before", [3, STEP - 4, STEP])
def test_what_is_not_kept_never_happened(before: int, kept: int) -> None:
    """After a pass of 7 rows, keeping any number of them, the next pass follows those."""
    cache = filled(before, 7)
    cache.keep(kept)
    assert cache.offset == before + kept
    expected = mx.concatenate([rows(0, before + kept), mx.full((1, 2, 1, 3), 9.5)], axis=2)
    assert mx.array_equal(appended(cache, 9.5), expected)


def test_stale_rows_are_never_read() -> None:
    """Rows behind the offset can hold anything, also when the buffers grow over them."""
    cache = filled(STEP - 2, 2)
    cache.keep(0)
    assert cache.keys is not None
    assert cache.values is not None
    cache.keys[..., cache.offset :, :] = mx.nan
    cache.values[..., cache.offset :, :] = mx.nan
    for count in (1, 5):
        new = rows(cache.offset, count)
        keys, values = cache.update_and_fetch(new, new)
        assert mx.array_equal(keys, rows(0, cache.offset))
        assert mx.array_equal(values, rows(0, cache.offset))


@pytest.mark.parametrize("length", [0, 1, STEP - 1, STEP, STEP + 3])
def test_a_rewound_cache_is_one_that_never_went_further(length: int) -> None:
    """Going back leaves the first rows and nothing else."""
    cache = filled(STEP, 3)
    cache.rewind(length)
    expected = mx.concatenate([rows(0, length), mx.full((1, 2, 1, 3), 9.5)], axis=2)
    assert mx.array_equal(appended(cache, 9.5), expected)


@pytest.mark.parametrize("num_tokens", [-1, 3])
def test_keeping_what_the_pass_did_not_have_names_the_layer(num_tokens: int) -> None:
    """Only 0 to all rows of the last pass can be kept."""
    with pytest.raises(RollbackError, match=r"blk\.7\.attn.*keep -?\d.*pass of 2"):
        filled(4, 2).keep(num_tokens)


def test_a_pass_can_be_kept_once() -> None:
    """What was kept is committed: a second keep has no pass left to cut."""
    cache = filled(4, 2)
    cache.keep(2)
    cache.keep(0)
    assert cache.offset == 6
    with pytest.raises(RollbackError, match=r"pass of 0"):
        cache.keep(1)


def test_a_pass_before_a_rewind_cannot_be_cut_after_it() -> None:
    """Going back forgets the last pass, which may lie behind."""
    cache = filled(4, 2)
    cache.rewind(1)
    with pytest.raises(RollbackError, match=r"pass of 0"):
        cache.keep(1)


@pytest.mark.parametrize("length", [-1, 7])
def test_going_back_to_where_it_never_was_names_the_layer(length: int) -> None:
    """A length beyond what is held, or below nothing, is an error."""
    with pytest.raises(RollbackError, match=r"blk\.7\.attn.*to -?\d of 6"):
        filled(4, 2).rewind(length)


def test_masks_for_foreign_models_are_causal() -> None:
    """None for one row, a word for several, or the array itself if asked: row i sees up to i."""
    cache = filled(3)
    assert cache.make_mask(1) is None
    assert cache.make_mask(2) == "causal"
    mask = cache.make_mask(2, return_array=True)
    assert isinstance(mask, mx.array)
    assert np.array_equal(np.array(mask), np.tri(2, 5, 3, dtype=bool))


def test_a_mask_of_a_window_hides_what_is_behind_it() -> None:
    """Of a layer of mlx-lm's that holds every row and sees the last three."""
    cache = filled(3)
    mask = cache.make_mask(2, window_size=3)
    assert isinstance(mask, mx.array)
    expected = np.tri(2, 5, 3, dtype=bool) & ~np.tri(2, 5, 0, dtype=bool)
    assert np.array_equal(np.array(mask), expected)
