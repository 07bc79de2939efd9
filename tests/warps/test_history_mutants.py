"""Mistakes in histories, numbers and order of the warps, each put in place and each caught."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import pytest

from mtplx import rounds, sampling
from mtplx.logprobs import packed_logprobs as packed
from mtplx.params import SamplingParams
from mtplx.rng import gate_uniforms as gates
from mtplx.sampling import History
from mtplx.warps import dry, filters, penalties
from mtplx.warps.dry import without_repetition
from mtplx.warps.filters import filtered
from mtplx.warps.penalties import penalised
from mtplx.warps.scores import processed
from mtplx.warps.xtc import without_top_choices as xtc
from tests import test_decode_warps, test_logprobs, test_sampling
from tests.warps import test_dry, test_filters, test_scores

repeated, suffixes, seen = dry._repeated, dry._suffixes, penalties.seen
NUMBERS = count()


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mistake, the function it is put in place of, and the property that has to notice it."""

    mistake: str
    place: Any
    name: str
    replacement: Any
    caught_by: Callable[[], None]

    def __str__(self) -> str:
        return self.mistake


def case(name: str) -> Callable[[], None]:
    return lambda: test_sampling.test_every_warp_alone_does_what_is_documented(name)


def penalty_window() -> None:
    test_sampling.test_the_penalty_window_slides_over_the_draft(2)


def logprobs_of_emitted() -> None:
    test_logprobs.test_emitted_tokens_have_the_targets_log_probabilities(
        3, test_logprobs.WARPED, "rejection"
    )


def plus(number: int | None) -> int | None:
    return None if number is None else number + 1


def once_more(history: History) -> History:
    return replace(history, token_ids=[*history.token_ids, *history.token_ids[-1:]])


def shorter(history: History) -> History:
    return replace(history, token_ids=history.token_ids[:-1])


def still_searched(*arguments: Any, **options: Any) -> list[mx.array]:
    found = repeated(*arguments, **options)
    return [found[0]] * len(found)


def without_breakers(tokens: Any, params: SamplingParams, longest: int) -> Any:
    return suffixes(tokens, replace(params, dry_breaker_ids=()), longest)


def fresh_gates(seed: int, position: int, number: int) -> mx.array:
    return gates(next(NUMBERS), position, number)


def xtc_first(exponents: mx.array, params: SamplingParams, g: mx.array, **options: Any) -> Any:
    left = xtc(filters.softmax(exponents), g, params)
    return filtered(mx.log2(left), replace(params, xtc_probability=0.0), g, **options)


def typical_first(exponents: mx.array, params: SamplingParams, g: Any, **options: Any) -> Any:
    alone = SamplingParams(typical_p=params.typical_p)
    left, _ = filtered(exponents, alone, g, **options)
    relative = mx.log2(left / mx.max(left, axis=-1, keepdims=True))
    return filtered(relative, replace(params, typical_p=1.0), g, **options)


def all_top_choices(probs: mx.array, g: mx.array, params: SamplingParams) -> mx.array:
    opens = (g < params.xtc_probability)[:, None]
    return mx.where((probs >= params.xtc_threshold) & opens, 0, probs)


def keeps_the_best(probs: mx.array, g: mx.array, params: SamplingParams) -> mx.array:
    peak = mx.max(probs, axis=-1, keepdims=True)
    return mx.where(probs == peak, probs, all_top_choices(probs, g, params))


MUTANTS = [
    Mutant(
        "the penalty window is one too long",
        penalties,
        "seen",
        lambda h, window, *rest: seen(h, plus(window), *rest),
        penalty_window,
    ),
    Mutant(
        "the pending token is counted twice",
        penalties,
        "seen",
        lambda h, *rest: seen(once_more(h), *rest),
        case("frequency"),
    ),
    Mutant(
        "every row sees the whole draft",
        History,
        "num_ahead",
        lambda self, num_rows: mx.full(num_rows, num_rows - 1).__array__(),
        test_scores.test_a_processor_sees_at_every_row_what_plain_decoding_would_show_it,
    ),
    Mutant(
        "processors miss the pending token",
        sampling,
        "processed",
        lambda scores, params, h: processed(scores, params, shorter(h)),
        lambda: test_decode_warps.test_a_processor_is_shown_what_plain_decoding_shows_it(0, 0),
    ),
    Mutant(
        "processors are called again for the same rows",
        sampling,
        "processed",
        lambda scores, params, h: processed(processed(scores, params, h), params, h),
        lambda: test_decode_warps.test_a_processor_is_shown_what_plain_decoding_shows_it(3, 1),
    ),
    Mutant(
        "penalties before processors",
        sampling,
        "processed",
        lambda scores, params, h: processed(penalised(scores, params, h), params, h),
        test_scores.test_processors_follow_bias_and_mask_and_precede_penalties,
    ),
    Mutant(
        "the window of DRY is one too long",
        sampling,
        "without_repetition",
        lambda s, p, h: without_repetition(s, replace(p, dry_window=plus(p.dry_window)), h),
        case("dry in a window"),
    ),
    Mutant(
        "DRY misses the pending token",
        sampling,
        "without_repetition",
        lambda s, p, h: without_repetition(s, p, shorter(h)),
        case("dry"),
    ),
    Mutant("DRY stands still in a block", dry, "_repeated", still_searched, case("dry")),
    Mutant(
        "DRY goes on across a breaker",
        dry,
        "_suffixes",
        without_breakers,
        test_dry.test_nothing_repeats_across_a_breaker,
    ),
    Mutant(
        "DRY penalises a breaker",
        dry,
        "_breaks",
        lambda committed, draft, params: mx.zeros(len(committed) + len(draft), dtype=mx.bool_),
        test_dry.test_nothing_repeats_across_a_breaker,
    ),
    Mutant(
        "XTC decides anew each time it is asked",
        rounds,
        "gate_uniforms",
        fresh_gates,
        test_decode_warps.test_xtc_goes_by_the_position_and_not_by_the_round,
    ),
    Mutant(
        "XTC decides once for a block",
        filters,
        "without_top_choices",
        lambda probs, g, params: xtc(probs, mx.broadcast_to(g[:1], g.shape), params),
        case("xtc"),
    ),
    Mutant("XTC before the filters", sampling, "filtered", xtc_first, case("xtc after top_k")),
    Mutant(
        "XTC leaves no probable token",
        filters,
        "without_top_choices",
        all_top_choices,
        test_filters.test_xtc_leaves_the_least_of_the_probable_tokens,
    ),
    Mutant(
        "XTC leaves the most probable token",
        filters,
        "without_top_choices",
        keeps_the_best,
        test_filters.test_xtc_leaves_the_least_of_the_probable_tokens,
    ),
    Mutant(
        "typical-p ranks by probability",
        filters,
        "closeness",
        lambda probs, entropy: probs,
        case("typical_p"),
    ),
    Mutant(
        "typical-p before top-k",
        sampling,
        "filtered",
        typical_first,
        case("typical_p within top_k"),
    ),
    Mutant(
        "log-probabilities of the row before",
        rounds,
        "packed_logprobs",
        lambda w, ids, params: packed(
            replace(w, probs=mx.concatenate([w.probs[:1], w.probs[:-1]])), ids, params
        ),
        logprobs_of_emitted,
    ),
    Mutant(
        "log-probabilities from the other side of the warps",
        rounds,
        "packed_logprobs",
        lambda w, ids, params: packed(w, ids, replace(params, logprobs_of="model")),
        logprobs_of_emitted,
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_wrong_history_or_order_is_caught(mutant: Mutant) -> None:
    """Each mistake makes the property beside it fail, which holds without it."""
    mutant.caught_by()
    with patch.object(mutant.place, mutant.name, mutant.replacement), pytest.raises(AssertionError):
        mutant.caught_by()
