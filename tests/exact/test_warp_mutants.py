"""Mistakes in the warps and their histories, each put into the code and each caught."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from mtplx import sampling
from mtplx.sampling import History, SamplingParams
from tests import test_sampling
from tests.exact.mutants import Mutant, assert_caught, penalties

filtered, kept, seen, warp = sampling._filtered, sampling._kept, sampling._seen, sampling.warp


def warp_case(name: str) -> Callable[[], None]:
    return lambda: test_sampling.test_every_warp_alone_does_what_is_documented(name)


def committed_only(history: History, window: int | None, num_rows: int, vocab_size: int) -> Any:
    ids, counts = seen(History(history.token_ids), window, 1, vocab_size)
    return ids, mx.broadcast_to(counts, (num_rows, counts.shape[-1]))


def without_pending(history: History, window: int | None, num_rows: int, vocab_size: int) -> Any:
    shorter = History(history.token_ids[:-1], history.draft)
    return seen(shorter, window, num_rows, vocab_size)


def whole_draft(history: History, window: int | None, num_rows: int, vocab_size: int) -> Any:
    ids, counts = seen(history, window, num_rows, vocab_size)
    return ids, mx.broadcast_to(counts[-1:], counts.shape)


def default_params(logits: mx.array, _: Any, history: History, **options: Any) -> Any:
    return warp(logits, SamplingParams(), history, **options)


def all_ties(weights: mx.array, total: mx.array, params: SamplingParams) -> Any:
    _, last = kept(weights, total, params)
    return normalised(weights * (weights >= last)), last


def top_p_first(weights: mx.array, total: mx.array, params: SamplingParams) -> Any:
    probs, _ = kept(weights, total, replace(params, top_k=0))
    relative = probs / mx.max(probs, axis=-1, keepdims=True)
    return kept(relative, total, replace(params, top_p=1.0))


def without_crossing(weights: mx.array, total: mx.array, params: SamplingParams) -> Any:
    probs, last = kept(weights, total, params)
    return normalised(probs * (weights > last)), last


def claims_complete(exponents: mx.array, params: SamplingParams, full_sort: bool) -> Any:
    probs, complete = filtered(exponents, params, full_sort)
    return probs, mx.ones_like(complete)


def untempered(exponents: mx.array, params: SamplingParams, full_sort: bool) -> Any:
    probs, complete = filtered(exponents * params.temperature, params, full_sort)
    return normalised(mx.power(2.0, exponents) * (probs > 0)), complete


def normalised(weights: mx.array) -> mx.array:
    return weights / mx.sum(weights, axis=-1, keepdims=True)


MUTANTS = [
    Mutant("penalties stand still in a block", sampling, "_seen", committed_only, penalties),
    Mutant("every row sees the whole draft", sampling, "_seen", whole_draft, penalties),
    Mutant(
        "the pending token is not seen", sampling, "_seen", without_pending, warp_case("presence")
    ),
    Mutant("default sampling fields", sampling, "warp", default_params, warp_case("top_k")),
    Mutant("temperature is fixed", sampling, "warp", default_params, warp_case("temperature")),
    Mutant(
        "filters before temperature",
        sampling,
        "_filtered",
        untempered,
        warp_case("top_p after temperature"),
    ),
    Mutant("top-p before top-k", sampling, "_kept", top_p_first, warp_case("top_p within top_k")),
    Mutant(
        "top-p drops a token too many",
        sampling,
        "_kept",
        without_crossing,
        warp_case("top_p"),
    ),
    Mutant(
        "ties at the edge all kept",
        sampling,
        "_kept",
        all_ties,
        lambda: test_sampling.test_of_equal_tokens_the_lowest_ids_are_kept({"top_k": 3}, 3),
    ),
    Mutant(
        "missing candidates go unnoticed",
        sampling,
        "_filtered",
        claims_complete,
        test_sampling.test_a_flat_row_says_that_it_needs_a_full_sort,
    ),
    Mutant(
        "NaN goes unnoticed",
        mx,
        "isfinite",
        lambda x: mx.ones(x.shape, dtype=mx.bool_),
        lambda: test_sampling.test_rows_that_are_no_logits_are_flagged([float("nan"), 0, 1], {}),
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_wrong_warp_is_caught(mutant: Mutant) -> None:
    """Each mistake makes the property beside it fail."""
    assert_caught(mutant)


def test_the_right_warp_passes_what_catches_the_wrong_ones() -> None:
    """The small scene that catches the mutants is exact without a mistake."""
    penalties()
