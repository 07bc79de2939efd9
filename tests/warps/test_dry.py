import time

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mtplx import sampling
from mtplx.sampling import History, SamplingParams
from mtplx.warps.dry import without_repetition
from tests.warps.reference import dry_penalty

Floats = NDArray[np.float64]


def penalties(
    history: list[int], draft: list[int], vocab_size: int = 6, **fields: object
) -> Floats:
    """[K + 1, V], what DRY subtracts at every row."""
    params = SamplingParams(**{"dry_multiplier": 1.0, **fields})  # type: ignore[arg-type]
    scores = mx.zeros((len(draft) + 1, vocab_size))
    seen = History(history, mx.array(draft, dtype=mx.int32))
    return -np.array(without_repetition(scores, params, seen)).astype(np.float64)


few = st.lists(st.integers(0, 2), max_size=14)


@settings(max_examples=150, deadline=None)
@given(
    few,
    st.lists(st.integers(0, 2), max_size=5),
    st.integers(1, 4),
    st.sampled_from([None, 1, 2, 3, 5, 8, 99]),
    st.sampled_from([(), (2,), (0, 1)]),
)
def test_every_row_is_penalised_for_what_it_would_repeat(
    history: list[int], draft: list[int], length: int, window: int | None, breakers: tuple[int, ...]
) -> None:
    """The cost of each token at each row equals that of a search place by place."""
    fields = {
        "dry_base": 1.5,
        "dry_allowed_length": length,
        "dry_window": window,
        "dry_breaker_ids": breakers,
    }
    found = penalties(history, draft, vocab_size=4, **fields)
    params = SamplingParams(dry_multiplier=1.0, **fields)  # type: ignore[arg-type]
    rows = [history + draft[:i] for i in range(len(draft) + 1)]
    expected = [[dry_penalty(x, params, seen) for x in range(4)] for seen in rows]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_drafter_row_sees_all_of_its_draft() -> None:
    """A single row after a draft equals the last row of a block, in every window."""
    history, draft = [1, 2, 3, 1], [2, 3, 1, 2]
    for window in (None, 1, 2, 3, 6):
        params = SamplingParams(dry_multiplier=1.0, dry_allowed_length=1, dry_window=window)
        alone = History(history, mx.array(draft))
        found = -np.array(without_repetition(mx.zeros((1, 6)), params, alone))
        block = penalties(history, draft, dry_allowed_length=1, dry_window=window)
        assert np.array_equal(found[0], block[-1])


def test_the_longest_repetition_counts() -> None:
    """A token that followed a short and a long passage is penalised for the long one, once."""
    found = penalties([1, 2, 3, 4, 0, 3, 4, 1, 2, 3], [], dry_base=2.0, dry_allowed_length=2)
    assert found[0].tolist() == [0, 0, 0, 0, 2, 0]


def test_nothing_repeats_across_a_breaker() -> None:
    """A passage ends at a breaker, and a breaker itself is never penalised."""
    text = [1, 2, 3, 1, 2]
    assert penalties(text, [], dry_allowed_length=2)[0, 3] == 1
    assert penalties(text, [], dry_allowed_length=2, dry_breaker_ids=(1,))[0, 3] == 0
    assert penalties(text, [], dry_allowed_length=1, dry_breaker_ids=(3,))[0, 3] == 0


@pytest.mark.parametrize("base", [1.75, 1.0, 1e9])
def test_a_long_repetition_costs_a_finite_number(base: float) -> None:
    """At most 1e9, so that float32 holds what comes of it."""
    found = penalties([1] * 400, [1] * 8, dry_base=base)
    assert np.all(np.isfinite(found))
    assert found[:, 1].tolist() == [1.0 if base == 1 else 1e9] * 9


@pytest.mark.parametrize("length", [3, 10**30])
def test_a_length_that_no_history_has_is_never_reached(length: int) -> None:
    """Nothing is penalised, and nothing overflows."""
    assert not penalties([1, 1, 1], [], dry_allowed_length=length).any()


@pytest.mark.parametrize("history", [[], [3]])
def test_without_two_tokens_there_is_nothing_to_repeat(history: list[int]) -> None:
    """The first tokens of a text are free."""
    assert not penalties(history, [], dry_allowed_length=1).any()


@pytest.mark.parametrize("dry_base", [1.75, 1.01])
def test_a_long_history_that_only_repeats_is_searched_quickly(dry_base: float) -> None:
    """The search ends where longer passages cost no more."""
    history = [7] * 30_000
    started_s = time.process_time()
    penalties(history, [7, 7], vocab_size=8, dry_base=dry_base)
    assert time.process_time() - started_s < 2


def test_a_forbidden_token_stays_forbidden() -> None:
    """-inf less a penalty is -inf."""
    params = SamplingParams(dry_multiplier=1.0, dry_allowed_length=1, logit_bias={1: -np.inf})
    warped = sampling.warp(mx.zeros((1, 4)), params, History([0, 1, 0]))
    assert warped.probs[0].tolist() == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3])
