"""What the figures of rounds allow to be said."""

import json
import random
from collections.abc import Sequence

import pytest

from mtplx.bench.arms import Arm, Case, Sample
from mtplx.bench.measure import Record
from mtplx.bench.rows import Row, make_rows, spread, verdict
from mtplx.params import SamplingParams

CASES = [Case("chat", "a", (1, 2, 3), 0), Case("chat", "b", (1, 2, 3, 4, 5), 1)]


def never(case: Case, params: SamplingParams) -> Sample:
    raise AssertionError("rows are made from records alone")


OFF, MTP = Arm("off", 0, never), Arm("mtp", 2, never)


def sample(num_tokens: int, decode_s: float, first: int = 0, **more: object) -> Sample:
    return Sample(tuple(range(first, first + num_tokens)), 0.5, decode_s, **more)  # type: ignore[arg-type]


def rows_of(
    rounds: Sequence[tuple[Sequence[Sample], Sequence[Sample]]], *, same_tokens: bool = True
) -> tuple[Row, Row]:
    """The rows of plain decoding and one depth; each round gives a sample per prompt for both."""
    records = [
        Record(index, case, arm.label, samples[place])
        for index, both in enumerate(rounds)
        for place, case in enumerate(CASES[: len(both[0])])
        for arm, samples in zip((OFF, MTP), both, strict=True)
    ]
    off, mtp = make_rows(records, [OFF, MTP], same_tokens_expected=same_tokens)
    return off, mtp


@pytest.mark.parametrize(
    ("values", "expected"),
    [([3.0], (3, 3, 3)), ([1.0, 2.0], (1.5, 1.2, 1.8)), ([5, 1, 4, 2, 3], (3, 1.8, 4.2))],
)
def test_a_spread_is_median_and_percentiles(
    values: list[float], expected: tuple[float, float, float]
) -> None:
    """Between two values the percentile lies in proportion; the order does not matter."""
    found = spread(values)
    assert (found.median, found.p20, found.p80) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ([1.2, 1.3, 1.25, 1.22, 1.28], "faster"),
        ([0.8, 0.7, 0.75, 0.79, 0.72], "slower"),
        ([1.2, 1.3, 0.99, 1.22, 1.28], "no difference"),
        ([1.01, 0.99, 1.0, 1.02, 0.98], "no difference"),
        ([1.0] * 5, "no difference"),
        ([2.0] * 4, "too few rounds"),
        ([1.1] * 7 + [0.9], "no difference"),
        ([1.1] * 8 + [0.9], "faster"),
        ([0.9] * 9 + [1.1], "slower"),
    ],
)
def test_a_verdict_needs_rounds_that_agree(ratios: list[float], expected: str) -> None:
    """All of five, or nearly all of many, have to lie on one side of 1."""
    assert verdict(ratios) == expected


@pytest.mark.parametrize("num_rounds", [5, 6, 8, 9, 15])
def test_noise_alone_is_rarely_called_a_difference(num_rounds: int) -> None:
    """Of measurements of two equal arms, at most one in 16 claims that one is faster."""
    rng = random.Random(0)
    trials = 4000
    claims = sum(
        verdict([rng.lognormvariate(0, 0.3) for _ in range(num_rounds)]) != "no difference"
        for _ in range(trials)
    )
    assert claims / trials < 1 / 16 + 0.012  # three standard errors


def test_a_ratio_is_taken_within_each_round() -> None:
    """A machine that slows down from round to round widens the speeds, not the ratio."""
    rounds = [([sample(10, 1.0 * k)], [sample(10, 0.8 * k)]) for k in (1, 2, 3, 4, 5)]
    off, mtp = rows_of(rounds)
    assert mtp.tokens_per_s.p20 < off.tokens_per_s.p80  # the speeds alone would overlap
    assert mtp.ratio_vs_off.median == pytest.approx(1.25)
    assert mtp.ratio_vs_off.p80 - mtp.ratio_vs_off.p20 < 1e-12
    assert mtp.verdict == "faster"


def test_a_rounds_speed_is_all_its_tokens_over_all_its_time() -> None:
    """A short reply does not weigh as much as a long one."""
    off, _ = rows_of([([sample(90, 9.0), sample(10, 9.0)], [sample(1, 1.0), sample(1, 1.0)])])
    assert off.tokens_per_s.median == pytest.approx(100 / 18)


def test_plain_decoding_is_what_it_is_compared_with() -> None:
    """Its own ratio is 1, and nothing is claimed about it."""
    off, _ = rows_of([([sample(10, 1.3)], [sample(10, 1.0)])] * 5)
    assert (off.ratio_vs_off.p20, off.ratio_vs_off.median, off.ratio_vs_off.p80) == (1, 1, 1)
    assert off.verdict == ""


def test_acceptance_is_that_of_all_replies_together() -> None:
    """Counts are added up before they are divided."""
    one = sample(6, 1.0, num_rounds=4, drafted=(4, 4), accepted=(2, 1))
    two = sample(10, 1.0, num_rounds=4, drafted=(4, 3), accepted=(4, 3))
    _, mtp = rows_of([([sample(6, 1.0), sample(10, 1.0)], [one, two])])
    assert mtp.acceptance_length == pytest.approx(16 / 8)
    assert mtp.acceptance_per_position == pytest.approx((6 / 8, 4 / 7))


def test_an_arm_that_does_not_tell_its_rounds_has_no_acceptance_length() -> None:
    """mlx-lm's replies come without rounds; that is not an acceptance of 0."""
    _, other = rows_of([([sample(6, 1.0)], [sample(6, 1.0, num_rounds=0)])])
    assert other.acceptance_length is None


def test_prefill_counts_the_tokens_that_were_passed() -> None:
    """Prefill leaves the last token of the prompt to the first round."""
    off, _ = rows_of([([sample(1, 1.0), sample(1, 1.0)], [sample(1, 1.0), sample(1, 1.0)])])
    assert off.prefill_tokens_per_s == pytest.approx((2 + 4) / (0.5 + 0.5))


def test_replies_with_other_tokens_are_counted() -> None:
    """A prompt counts as the same only if every round's tokens are."""
    same, other = sample(5, 1.0), sample(5, 1.0, first=9)
    _, mtp = rows_of([([same, same], [same, same]), ([same, same], [same, other])])
    assert mtp.same_tokens_as_off == 0.5
    _, mtp = rows_of([([same], [other])], same_tokens=False)
    assert mtp.same_tokens_as_off is None


def test_a_row_is_plain_json() -> None:
    """A row goes through JSON unchanged and has the promised names."""
    _, mtp = rows_of([([sample(10, 1.3)], [sample(10, 1.0)])] * 5)
    row = mtp.to_json()
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    promised = (
        "class arm depth tokens_per_s tokens_per_s_p20 tokens_per_s_p80 ratio_vs_off "
        "acceptance_length acceptance_per_position"
    )
    assert set(promised.split()) <= set(row)
