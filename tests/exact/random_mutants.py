"""Mistakes in random numbers, and in drawing a token with them."""

from typing import Any

from mtplx import coupled, rng, sampling
from mtplx.rng import Purpose
from mtplx.warps import sums
from tests import test_draw, test_rng
from tests.exact import test_draws, test_streams
from tests.exact.mutants import Mutant, edit, named, swap

words = rng.words


def one_purpose(seed: int, position: int, _: Purpose, count: int, *, step: int = 0) -> Any:
    return words(seed, position, Purpose.TARGET, count, step=step)


class Generator:
    """Numbers that move on with every call, as a stateful generator's do."""

    calls = 0

    def __call__(self, seed: int, _: int, purpose: Purpose, count: int, *, step: int = 0) -> Any:
        self.calls += 1
        return words(0, self.calls, purpose, count, step=step)


RANDOMNESS = [
    Mutant(
        "the draft's numbers used again to replace it",
        swap(rng, "words", one_purpose),
        named(test_draws.test_whole_texts_of_seeds_draw_from_the_target),
        seen=(1,),
    ),
    Mutant(
        "the draft drawn with the numbers that accept it",
        edit(rng.draft_uniforms, "Purpose.DRAFT", "Purpose.ACCEPT"),
        named(test_streams.test_a_decode_drafts_and_accepts_with_numbers_of_their_own),
        seen=(2,),
    ),
    Mutant(
        "a discarded draft's numbers used again",
        edit(
            rng.draft_uniforms,
            "seed, position, Purpose.DRAFT, 2, step=step",
            "seed, position + step, Purpose.DRAFT, 2",
        ),
        named(test_draws.test_whole_texts_of_seeds_draw_from_the_target),
    ),
    Mutant(
        "draft numbers of the position alone",
        edit(
            rng.draft_uniforms,
            "seed, position, Purpose.DRAFT, 2, step=step",
            "seed, position + step, Purpose.DRAFT, 2",
        ),
        named(test_rng.test_no_number_is_used_twice_in_a_decode),
    ),
    Mutant(
        "accept numbers of the position alone",
        edit(
            rng.round_uniforms,
            "seed, position, Purpose.ACCEPT, 1, step=i",
            "seed, position + i, Purpose.ACCEPT, 1",
        ),
        named(test_streams.test_a_decode_drafts_and_accepts_with_numbers_of_their_own),
    ),
    Mutant(
        "a seed without effect",
        edit(rng.words, 'key = seed.to_bytes(8, "little")', 'key = b"12345678"'),
        named(test_rng.test_every_part_of_the_key_matters),
        seen=(19,),
    ),
    Mutant(
        "numbers that are only 0 or nearly 1",
        edit(rng._fraction, "(word >> 8) / 2**24", "(word & 1) * (1 - 2**-24)"),
        named(test_rng.test_numbers_are_uniform),
        seen=(19,),
    ),
    Mutant(
        "a hash that becomes 1",
        edit(rng._fraction, "(word >> 8) / 2**24", "word / (2**32 - 1)"),
        named(test_rng.test_fractions_are_exact_in_float32_and_below_one),
        seen=(20,),
    ),
    Mutant(
        "noise that can be infinite or none",
        edit(
            coupled._exponential,
            "mx.minimum(bits.astype(mx.float32) * 2**-32 + 2**-33, 1 - 2**-24)",
            "bits.astype(mx.float32) * 2**-32",
        ),
        named(test_draws.test_noise_is_positive_and_finite_at_its_ends),
        seen=(20,),
    ),
    Mutant(
        "noise that neighbouring tokens share",
        edit(coupled._hash, "x = ids *", "x = (ids & 0xFFFFFFFE) *"),
        named(test_draws.test_real_noise_draws_from_the_target, [0, 1]),
    ),
    Mutant(
        "requests without a seed share one",
        edit(rng.fresh_seed, 'int.from_bytes(os.urandom(8), "little")', "42"),
        named(test_rng.test_fresh_seeds_differ),
        seen=(21,),
    ),
    Mutant(
        "one generator for all requests",
        swap(rng, "words", Generator()),
        named(test_streams.test_decodes_side_by_side_write_what_they_write_alone, (3, 3)),
        seen=(17, 21),
    ),
    Mutant(
        "a round without a draft uses numbers up",
        swap(rng, "words", Generator()),
        named(test_streams.test_a_depth_that_drafts_nothing_is_plain_decoding),
        seen=(22,),
    ),
    Mutant(
        "accept numbers for a draft that is not there",
        edit(rng.round_uniforms, "for i in range(num_draft)]", "for i in range(num_draft + 1)]"),
        named(test_streams.test_a_round_without_a_draft_asks_for_its_token_alone, "block"),
        seen=(22,),
    ),
]

DRAWS = [
    Mutant(
        "the favourite for a draw",
        edit(
            sampling.draw_by_operations,
            "return mx.squeeze(chosen * _SEGMENT + within, axis=-1)",
            "return mx.argmax(probs, axis=-1)",
        ),
        named(test_draws.test_a_draw_from_a_large_vocabulary, 49_152, {}),
        seen=(23,),
    ),
    Mutant(
        "one number for both levels",
        edit(
            sampling.draw_by_operations,
            "_first_past(members, uniforms[..., 1:])",
            "_first_past(members, uniforms[..., :1])",
        ),
        named(test_draws.test_a_draw_from_a_large_vocabulary, 49_152, {}),
    ),
    Mutant(
        "a number of 0 falls on a token of probability 0",
        edit(sampling._first_past, "mx.logical_or(reached > target, last)", "running >= target"),
        named(test_draw.test_a_token_without_probability_is_never_drawn, 1000),
    ),
    Mutant(
        "running sums in half precision",
        edit(
            sums.running_sums,
            "x.shape[-1] <= _BLOCK:",
            "x.shape[-1] <= _BLOCK:\n        x = x.astype(mx.float16).astype(x.dtype)",
        ),
        named(test_draw.test_the_second_number_divides_a_segment_exactly),
    ),
    Mutant(
        "running sums in one go",
        edit(sums.running_sums, "x.shape[-1] <= _BLOCK", "True"),
        named(test_draw.test_improbable_tokens_keep_their_share_beside_a_dominant_one),
    ),
]
