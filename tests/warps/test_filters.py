from collections.abc import Iterator
from unittest.mock import patch

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from mtplx import sampling
from mtplx.sampling import History, SamplingParams
from mtplx.warps import filters

Floats = NDArray[np.float64]


@pytest.fixture
def few_candidates() -> Iterator[None]:
    """Makes the search for candidates work on small vocabularies."""
    with patch.object(filters, "_NUM_CANDIDATES", 6):
        yield


FILTERS = [
    {"top_p": 0.5},
    {"top_k": 2},
    {"min_p": 0.4},
    {"top_p": 0.9},
    {"typical_p": 0.5},
    {"typical_p": 0.6, "min_p": 0.4},
    {"top_p": 0.6, "typical_p": 0.9, "xtc_probability": 1.0},
]


@pytest.mark.usefixtures("few_candidates")
@pytest.mark.parametrize("vocab_size", [64, 200, 257, 1000])
@pytest.mark.parametrize("params", FILTERS)
def test_candidates_decide_as_the_whole_vocabulary_would(
    vocab_size: int, params: dict[str, float]
) -> None:
    """A row that calls itself complete equals the row of a full sort, bit for bit."""
    rng = np.random.default_rng(vocab_size)
    spread = np.linspace(0, 6, 200)[:, None]  # from rows that are all ties to peaked ones
    logits = np.round(rng.exponential(size=(200, vocab_size)) * spread * 2) / 2
    draft = mx.zeros(199, dtype=mx.int32)
    settings_ = SamplingParams(**params)  # type: ignore[arg-type]  # floats and ints in one table
    rows, gates = mx.array(logits.astype(np.float32)), mx.zeros(200)
    quick = sampling.warp(rows, settings_, History((), draft, gates))
    full = sampling.completed(quick, settings_)
    complete = np.array(quick.complete)
    assert np.all(np.array(full.complete))
    assert 0 < complete.sum() < 200, "the test needs rows of both kinds"
    assert np.array_equal(np.array(quick.probs)[complete], np.array(full.probs)[complete])


@pytest.mark.parametrize("vocab_size", [49_152, 50_257])
def test_ordinary_rows_are_complete_without_a_full_sort(vocab_size: int) -> None:
    """On rows as peaked as a model's, the candidates suffice for all the usual filters."""
    logits = np.random.default_rng(0).normal(scale=3, size=(2, vocab_size))
    logits[:, 7], logits[0, 8] = 19, 18.5
    draft = mx.zeros(1, dtype=mx.int32)
    rows = mx.array(logits.astype(np.float32))
    usual = ({"top_p": 0.95}, {"top_k": 200}, {"min_p": 0.02}, {"top_k": 50, "top_p": 0.9})
    for fields in (*usual, {"typical_p": 0.9}):
        params = SamplingParams(temperature=1.0, **fields)
        assert sampling.warp(rows, params, History((), draft)).complete.tolist() == [True, True]


def test_low_temperatures_need_no_full_sort() -> None:
    """Tokens whose probability underflows are not kept, so they cannot call for a full sort."""
    logits = np.random.default_rng(0).normal(scale=5, size=(1, 49_152))
    rows = mx.array(logits.astype(np.float32))
    params = SamplingParams(temperature=0.01, top_k=500)
    assert sampling.warp(rows, params, History(())).complete.item() is True


def of(probs: list[float], gate: float = 0.0, **fields: float) -> list[float]:
    """What the filters make of one row."""
    logits = mx.array(np.log(np.array([probs], dtype=np.float32) + 1e-30))
    params = SamplingParams(temperature=1.0, **fields)  # type: ignore[arg-type]  # as above
    left = sampling.warp(logits, params, History((), gates=mx.array([gate]))).probs
    return [float(p) for p in np.array(left[0])]


def test_typical_p_can_drop_the_most_probable_token() -> None:
    """Where the rest is spread evenly, a token that stands out is the surprising one."""
    spread = [0.3, *[0.1] * 7]
    assert np.flatnonzero(of(spread, typical_p=0.5)).tolist() == [1, 2, 3, 4, 5]
    assert np.flatnonzero(of(spread, typical_p=0.95)).tolist() == list(range(8))


def test_of_equally_typical_tokens_the_lowest_ids_are_kept() -> None:
    """A flat row is cut by id."""
    assert np.flatnonzero(of([0.125] * 8, typical_p=0.5)).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("typical_p", [1e-9, 0.5, 0.99, 1 - 1e-12])
def test_a_certain_token_is_typical(typical_p: float) -> None:
    """A row with one token keeps it."""
    assert of([0.0, 1.0, 0.0], typical_p=typical_p) == [0, 1, 0]


XTC = {"xtc_probability": 0.5, "xtc_threshold": 0.2}


def test_xtc_leaves_the_least_of_the_probable_tokens() -> None:
    """Those below the threshold stay too, in proportion."""
    np.testing.assert_allclose(
        of([0.4, 0.1, 0.28, 0.22], **XTC), [0, 0.1 / 0.32, 0, 0.22 / 0.32], atol=1e-6
    )


@pytest.mark.parametrize("row", [[0.9, 0.1], [0.15, 0.85], [0.19, 0.62, 0.19], [0.125] * 8])
def test_xtc_leaves_a_row_without_a_choice_alone(row: list[float]) -> None:
    """Where one token reaches the threshold, or none does, nothing is removed."""
    assert of(row, **XTC) == pytest.approx(row, abs=1e-6)


def test_of_equal_top_choices_xtc_leaves_the_highest_id() -> None:
    """It is the last in the ranking of all filters."""
    assert of([0.25] * 4, **XTC) == [0, 0, 0, 1]


def test_xtc_acts_where_the_gate_is_below_its_probability() -> None:
    """Strictly, so that 0 is never and 1 is always, the largest number that is drawn included."""
    row, last = [0.5, 0.5], 1 - 2**-24
    assert of(row, gate=0.5 - 2**-24, **XTC) == [0, 1]
    assert of(row, gate=0.5, **XTC) == row
    assert of(row, gate=last, xtc_probability=1.0) == [0, 1]
    assert of(row, gate=0.0, xtc_probability=0.0) == row


def test_xtc_thresholds_what_the_filters_before_it_left() -> None:
    """A token reaches the threshold once top-k has raised its share."""
    row = [0.3, 0.18, *[0.052] * 10]
    assert of(row, **XTC) == pytest.approx(row, abs=1e-6)
    assert of(row, top_k=2, **XTC)[:2] == [0, 1]
