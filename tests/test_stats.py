import pytest

from mtplx.stats import DecodeStats


def test_nothing_counted_is_zero_everywhere() -> None:
    """Rates of a request that has not begun are 0, not errors."""
    stats = DecodeStats()
    assert (stats.tokens_per_s, stats.acceptance_length, stats.other_s) == (0, 0, 0)
    assert stats.acceptance_per_position == []


def test_the_parts_add_up_to_the_total() -> None:
    """Other is what is left of the total."""
    stats = DecodeStats(prefill_s=1.0, draft_s=0.5, verify_s=2.0, accept_s=0.25, total_s=4.0)
    assert stats.other_s == 0.25


def test_speed_leaves_prefill_out() -> None:
    """Tokens per second count from the end of prefill."""
    stats = DecodeStats(num_tokens=30, prefill_s=1.0, total_s=4.0)
    assert stats.decode_s == 3.0
    assert stats.tokens_per_s == 10.0


def test_acceptance_length_counts_the_token_behind_the_draft() -> None:
    """12 tokens in 5 rounds are 2.4, recovered and bonus tokens included."""
    assert DecodeStats(num_tokens=12, num_rounds=5).acceptance_length == pytest.approx(2.4)


def test_acceptance_is_counted_by_place_in_the_draft() -> None:
    """Drafts of different lengths count where they reach, and behind a refusal as refused."""
    stats = DecodeStats()
    for num_drafted, num_accepted in ((2, 2), (0, 0), (3, 1), (1, 0), (2, 1)):
        stats.count_draft(num_drafted, num_accepted)
    assert stats.drafted == [4, 3, 1]
    assert stats.accepted == [3, 1, 0]
    assert stats.acceptance_per_position == [3 / 4, 1 / 3, 0]


def test_what_most_drafted_tokens_came_from_is_the_mode() -> None:
    """Tokens count, not rounds; without any there is no mode."""
    stats = DecodeStats()
    assert stats.draft_mode is None
    for name, num_drafted, num_accepted in (("greedy", 1, 1), ("greedy", 1, 0), ("lookup", 4, 3)):
        stats.count_source(name, num_drafted, num_accepted)
    assert stats.draft_mode == "lookup"
    assert (stats.sources["greedy"].drafted, stats.sources["greedy"].accepted) == (2, 1)
    assert (stats.sources["lookup"].drafted, stats.sources["lookup"].accepted) == (4, 3)
