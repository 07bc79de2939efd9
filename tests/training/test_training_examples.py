"""Batches line up with the trunk: column by column, passage by passage."""

from collections import Counter
from itertools import islice

import mlx.core as mx
import numpy as np
import pytest

from mtplx.errors import TrainingError
from mtplx.models.shortlist import Shortlist, make_shortlist
from mtplx.training.examples import NUM_TOP, Batch, batches, frequent_ids, make_example
from mtplx.training.own_text import Passage
from tests.tiny import tiny_target
from tests.training.small import random_passages

TARGET = tiny_target()
EVERY_ID = mx.arange(TARGET.vocab_size, dtype=mx.int32)
PASSAGES = random_passages(TARGET, [30, 22, 41, 35, 22, 60])
EXAMPLES = [make_example(p, make_shortlist(TARGET.lm_head, EVERY_ID)) for p in PASSAGES]


def some_batches(seed: int, count: int, first_step: int = 0, num_windows: int = 3) -> list[Batch]:
    endless = batches(
        EXAMPLES,
        num_windows=num_windows,
        num_anchors=16,
        depth=3,
        seed=seed,
        first_step=first_step,
    )
    return list(islice(endless, count))


def place_of(batch: Batch, row: int) -> tuple[Passage, int]:
    """The one passage, and the one place in it, that a window's tokens come from."""
    tokens = np.array(batch.token_ids[row]).tolist()
    places = [
        (passage, start)
        for passage in PASSAGES
        for start in range(len(passage.token_ids))
        if passage.token_ids[start + 1 : start + 1 + len(tokens)].tolist() == tokens
    ]
    assert len(places) == 1
    return places[0]


def same(one: Batch, other: Batch) -> bool:
    fields = ("token_ids", "hidden", "top_columns", "top_probs")
    return all(mx.array_equal(getattr(one, f), getattr(other, f)).item() for f in fields)


@pytest.mark.parametrize("shortlist_size", [64, 40])
def test_column_c_is_the_trunks_distribution_after_token_c(shortlist_size: int) -> None:
    """Recomputed from the tokens alone, p on the shortlist at every row and column of a batch."""
    ids = mx.arange(0, shortlist_size, dtype=mx.int32)
    shortlist = make_shortlist(TARGET.lm_head, ids)
    examples = [make_example(p, shortlist) for p in PASSAGES]
    batch = next(batches(examples, num_windows=5, num_anchors=16, depth=3, seed=1))
    assert batch.token_ids.shape == (5, 18)
    assert batch.top_probs.shape == (5, 18, min(NUM_TOP, shortlist_size))
    for row in range(5):
        passage, start = place_of(batch, row)
        state = TARGET.forward(mx.array(passage.token_ids), TARGET.make_cache())
        logits = np.array(TARGET.logits(TARGET.normalise(state)), np.float64)[:, :shortlist_size]
        for c in range(18):
            columns = np.array(batch.top_columns[row, c])
            of_all = logits[start + 1 + c]
            assert of_all[columns].min() >= np.delete(of_all, columns).max(initial=-np.inf) - 1e-2
            weights = np.exp(of_all[columns] - of_all.max())
            found = np.array(batch.top_probs[row, c])
            np.testing.assert_allclose(found, weights / weights.sum(), rtol=1e-2, atol=1e-5)


def test_hidden_states_are_those_of_the_anchors() -> None:
    """Row t of a window is the trunk's state one token before column t."""
    for batch in some_batches(seed=2, count=4):
        for row in range(3):
            passage, start = place_of(batch, row)
            expected = passage.hidden[start : start + 16].astype(np.float32)
            assert np.array_equal(np.array(batch.hidden[row]), expected)


def test_windows_lie_within_one_passage_and_reach_both_ends() -> None:
    """No window joins two passages; every place that one can begin at is used."""
    seen: Counter[tuple[int, int]] = Counter()
    for batch in some_batches(seed=3, count=400):
        for row in range(3):
            passage, start = place_of(batch, row)
            seen[len(passage.token_ids), start] += 1
    lengths = {len(p.token_ids) for p in PASSAGES}
    assert set(seen) == {(n, start) for n in lengths for start in range(n - 19 + 1)}


def test_batches_follow_from_the_seed() -> None:
    """The same seed gives the same batches, another one others."""
    one, again, other = (some_batches(seed, 3) for seed in (5, 5, 6))
    assert all(same(a, b) for a, b in zip(one, again, strict=True))
    assert not any(same(a, b) for a, b in zip(one, other, strict=True))


def test_a_batch_follows_from_its_step_wherever_steps_begin() -> None:
    """Training that is taken up again sees what it would have seen."""
    whole = some_batches(seed=7, count=12)
    for first in (1, 2, 5, 11):
        taken_up = some_batches(seed=7, count=12 - first, first_step=first)
        assert all(same(a, b) for a, b in zip(whole[first:], taken_up, strict=True))


def test_every_passage_is_seen_once_before_any_is_seen_again() -> None:
    """Passages are shuffled, not drawn: none is left out by chance."""
    for epoch in range(4):
        pair = some_batches(seed=8, count=2, first_step=2 * epoch)
        seen = [id(place_of(batch, row)[0]) for batch in pair for row in range(3)]
        assert len(set(seen)) == len(PASSAGES)


def test_passages_that_are_too_short_are_left_out() -> None:
    """What does not hold a window is not used, and too few passages are a training error."""
    short = random_passages(TARGET, [18, 10], seed=9)
    examples = [*EXAMPLES, *(make_example(p, _everything()) for p in short)]
    endless = batches(examples, num_windows=6, num_anchors=16, depth=3, seed=0)
    for batch in islice(endless, 20):
        for row in range(6):
            place_of(batch, row)
    with pytest.raises(TrainingError, match=r"6 passages of at least 19 tokens.*takes 7"):
        next(batches(examples, num_windows=7, num_anchors=16, depth=3, seed=0))


def _everything() -> Shortlist:
    return make_shortlist(TARGET.lm_head, EVERY_ID)


def test_the_shortlist_is_the_most_frequent_tokens() -> None:
    """The most frequent ids in ascending order; of equally frequent ones the lower."""
    tokens = np.array([9, 9, 9, 2, 2, 7, 7, 5, 1], np.int32)
    passage = Passage(tokens, np.zeros((9, 4), np.float16), "text")
    assert frequent_ids([passage], 12, 3).tolist() == [2, 7, 9]
    assert frequent_ids([passage], 12, 4).tolist() == [1, 2, 7, 9]
    assert frequent_ids([passage, passage], 12, 6).tolist() == [0, 1, 2, 5, 7, 9]


def test_a_shortlist_is_at_most_the_vocabulary() -> None:
    """A size beyond the vocabulary takes all of it."""
    assert frequent_ids(PASSAGES, 64, 8192).tolist() == list(range(64))


def test_what_a_passage_takes_is_mostly_its_hidden_states() -> None:
    """A million tokens of the default model's width stay under two gigabytes."""
    width = 576
    example = EXAMPLES[0]
    rows = len(example.passage.token_ids)
    per_row = (example.top_columns.nbytes + example.top_probs.nbytes) / rows + width * 2 + 4
    assert per_row * 1e6 < 2e9
