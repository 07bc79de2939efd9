import random
from collections import Counter
from itertools import product
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import numpy as np
import pytest
from scipy import stats

from mtplx import rng
from mtplx.rng import Purpose

LARGEST = 1 - 2**-24


def test_fractions_are_exact_in_float32_and_below_one() -> None:
    """The smallest and the largest word map into [0, 1), and float32 holds both exactly."""
    assert rng._fraction(0) == 0
    assert rng._fraction(2**32 - 1) == LARGEST
    assert float(np.float32(LARGEST)) == LARGEST < 1


def test_numbers_are_multiples_of_the_resolution() -> None:
    """Every number is a multiple of 2**-24 in [0, 1)."""
    numbers = np.array(rng.uniforms(3, 5, Purpose.TARGET, 5000)) * 2**24
    assert np.array_equal(numbers, np.round(numbers))
    assert numbers.min() >= 0
    assert numbers.max() < 2**24


def test_numbers_are_the_same_on_every_platform() -> None:
    """Pinned values: a seed that a user wrote down keeps its meaning."""
    first = [x * 2**24 for x in rng.uniforms(1234, 56, Purpose.ACCEPT, 3, step=7)]
    assert first == [16504867, 2715250, 7905082]


def test_numbers_do_not_depend_on_what_was_asked_before() -> None:
    """A key gives the same numbers in any order of asking, however often."""
    keys = [(s, t, p, i) for s, t, p, i in product((0, 9), range(5), Purpose, range(3))]
    in_order = {key: rng.uniforms(*key[:3], 2, step=key[3]) for key in keys}
    random.Random(0).shuffle(keys)
    assert all(rng.uniforms(*key[:3], 2, step=key[3]) == in_order[key] for key in keys)


def test_asking_for_more_numbers_keeps_the_first_ones() -> None:
    """The first numbers of a key are the same however many are asked for."""
    many = rng.uniforms(1, 2, Purpose.DRAFT, 100)
    assert all(rng.uniforms(1, 2, Purpose.DRAFT, n) == many[:n] for n in (0, 1, 15, 16, 17, 33))


def test_every_part_of_the_key_matters() -> None:
    """Keys that differ in seed, position, purpose or step give different numbers."""
    keys = product((0, 1, 2**64 - 1), (0, 1, 2**40), Purpose, (0, 1))
    numbers = [tuple(rng.uniforms(s, t, p, 4, step=i)) for s, t, p, i in keys]
    assert len(set(numbers)) == len(numbers)


def test_numbers_are_uniform() -> None:
    """Kolmogorov-Smirnov over positions, for each purpose, at a false alarm rate of 1e-9."""
    for purpose in Purpose:
        sample = [rng.uniforms(7, t, purpose, 1)[0] for t in range(10_000)]
        assert stats.kstest(sample, "uniform").pvalue > 1e-9


def test_purposes_are_independent_of_each_other() -> None:
    """What is drawn, accepted and drafted at one position is uncorrelated, and so are a pair."""
    rows = [
        [number for purpose in Purpose for number in rng.uniforms(7, t, purpose, 2)]
        for t in range(10_000)
    ]
    off_diagonal = np.corrcoef(np.array(rows).T) - np.eye(2 * len(Purpose))
    assert np.abs(off_diagonal).max() < 0.06  # six standard deviations


def test_no_number_is_used_twice_in_a_decode() -> None:
    """Over rounds of any depth and outcome, each key is used at most once."""
    used: Counter[tuple[Any, ...]] = Counter()
    original = rng.uniforms

    def recording(seed: int, position: int, purpose: Purpose, count: int, *, step: int = 0) -> Any:
        asked.append((position, purpose, step))
        return original(seed, position, purpose, count, step=step)

    choices, position = random.Random(0), 0
    with patch.object(rng, "uniforms", recording):
        for _ in range(300):
            num_draft = choices.randint(0, 5)
            num_accepted = choices.randint(0, num_draft)
            asked: list[tuple[Any, ...]] = []
            for step in range(num_draft):
                rng.draft_uniforms(1, position, step)
            rng.round_uniforms(1, position, num_draft)
            unused = [key for key in asked if key[1] is Purpose.TARGET]
            del unused[num_accepted]  # one token alone is chosen by the target
            used.update(key for key in asked if key not in unused)
            position += num_accepted + 1
    assert len(used) > 300
    assert max(used.values()) == 1


def test_a_plain_round_uses_what_a_bonus_or_recovered_draw_there_would() -> None:
    """The target's numbers at a position are those of the position, whatever the round."""
    plain = rng.round_uniforms(3, 12, 0).choose[0]
    drafted = rng.round_uniforms(3, 9, 3).choose[3]
    assert mx.array_equal(plain, drafted)


@pytest.mark.parametrize("num_draft", [0, 1, 7])
def test_round_uniforms_have_a_number_for_every_row(num_draft: int) -> None:
    """One accept number for each draft token and two choose numbers for each row, in float32."""
    uniforms = rng.round_uniforms(3, 9, num_draft)
    assert uniforms.accept.shape == (num_draft,)
    assert uniforms.choose.shape == (num_draft + 1, 2)
    assert uniforms.accept.dtype == uniforms.choose.dtype == mx.float32
    assert rng.draft_uniforms(3, 9, 0).shape == (2,)


def test_fresh_seeds_differ() -> None:
    """Requests that name no seed do not share one."""
    seeds = {rng.fresh_seed() for _ in range(100)}
    assert len(seeds) == 100
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert max(seeds) > 2**56
