"""Mistakes in the draw and in the random numbers, each put into the code and each caught."""

from typing import Any

import mlx.core as mx
import pytest

from mtplx import rng, sampling, verification
from mtplx.rng import Purpose
from tests import test_draw, test_rng
from tests.exact import test_draws
from tests.exact.mutants import Mutant, assert_caught, sampled

draw, running_sums = sampling.draw, sampling._running_sums
draft_uniforms, uniforms = rng.draft_uniforms, rng.uniforms


def unguarded(weights: mx.array, uniform: mx.array) -> mx.array:
    running = running_sums(weights)
    past = running >= uniform * running[..., -1:]
    return mx.argmax(past, axis=-1, keepdims=True).astype(mx.int32)


DRAW_MUTANTS = [
    Mutant("argmax for a draw", verification, "draw", lambda p, u: mx.argmax(p, axis=-1), sampled),
    Mutant(
        "one number for both levels",
        sampling,
        "draw",
        lambda p, u: draw(p, mx.stack([u[..., 0], u[..., 0]], axis=-1)),
        lambda: test_draws.test_a_draw_from_a_large_vocabulary(49_152, {}),
    ),
    Mutant(
        "a number of 0 falls on a token of probability 0",
        sampling,
        "_first_past",
        unguarded,
        lambda: test_draw.test_a_token_without_probability_is_never_drawn(1000),
    ),
    Mutant(
        "running sums in half precision",
        sampling,
        "_running_sums",
        lambda x: mx.cumsum(x.astype(mx.float16), axis=-1).astype(mx.float32),
        test_draw.test_the_second_number_divides_a_segment_exactly,
    ),
    Mutant(
        "running sums in one go",
        sampling,
        "_running_sums",
        lambda x: mx.cumsum(x, axis=-1),
        test_draw.test_improbable_tokens_keep_their_share_beside_a_dominant_one,
    ),
]


def one_purpose(seed: int, position: int, _: Purpose, count: int, *, step: int = 0) -> Any:
    return uniforms(seed, position, Purpose.TARGET, count, step=step)


def one_seed(_: int, position: int, purpose: Purpose, count: int, *, step: int = 0) -> Any:
    return uniforms(0, position, purpose, count, step=step)


class Generator:
    """Numbers that move on with every call, as a stateful generator's do."""

    calls = 0

    def __call__(self, seed: int, _: int, purpose: Purpose, count: int, *, step: int = 0) -> Any:
        self.calls += 1
        return uniforms(seed, self.calls, purpose, count, step=step)


RANDOMNESS_MUTANTS = [
    Mutant(
        "the draft's noise reused in recovery",
        rng,
        "uniforms",
        one_purpose,
        test_draws.test_whole_texts_of_seeds_draw_from_the_target,
    ),
    Mutant(
        "a discarded draft's numbers used again",
        rng,
        "draft_uniforms",
        lambda seed, position, step: draft_uniforms(seed, position + step, 0),
        test_draws.test_whole_texts_of_seeds_draw_from_the_target,
    ),
    Mutant(
        "draft numbers keyed by position alone",
        rng,
        "draft_uniforms",
        lambda seed, position, step: draft_uniforms(seed, position + step, 0),
        test_rng.test_no_number_is_used_twice_in_a_decode,
    ),
    Mutant(
        "the seed has no effect",
        rng,
        "uniforms",
        one_seed,
        test_rng.test_every_part_of_the_key_matters,
    ),
    Mutant(
        "a round without a draft moves the numbers on",
        rng,
        "uniforms",
        Generator(),
        test_rng.test_numbers_do_not_depend_on_what_was_asked_before,
    ),
    Mutant(
        "a hash that becomes 1.0",
        rng,
        "_fraction",
        lambda word: word / (2**32 - 1),
        test_rng.test_fractions_are_exact_in_float32_and_below_one,
    ),
    Mutant(
        "numbers that are only 0 or nearly 1",
        rng,
        "_fraction",
        lambda word: (word & 1) * test_rng.LARGEST,
        test_rng.test_numbers_are_uniform,
    ),
    Mutant(
        "requests without a seed share one",
        rng,
        "fresh_seed",
        lambda: 42,
        test_rng.test_fresh_seeds_differ,
    ),
]


@pytest.mark.parametrize("mutant", DRAW_MUTANTS + RANDOMNESS_MUTANTS, ids=str)
def test_a_wrong_draw_is_caught(mutant: Mutant) -> None:
    """Each mistake makes the property beside it fail."""
    assert_caught(mutant)
