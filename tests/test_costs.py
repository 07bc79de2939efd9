"""The cost of rounds: lines through what was measured, and what is expected before anything was."""

from itertools import pairwise

import pytest

from mtplx.costs import CostCurve, expected_experts, expected_tokens
from mtplx.errors import UsageError
from mtplx.shipped_costs import SHIPPED_PRIORS, Experts, machine_kind, shipped_curve

CURVE = CostCurve((100, 1100), ((1.0, 1.5, 3.0), (2.0, 3.5, 7.0)), (0.1, 0.3), 0.05)


def test_what_was_measured_is_given_back() -> None:
    """At every context and number of rows."""
    found = [[CURVE.verify_at(rows, at) for rows in (1, 2, 3)] for at in (100, 1100)]
    assert found == [[1.0, 1.5, 3.0], [2.0, 3.5, 7.0]]
    assert CURVE.max_depth == 2


def test_between_and_behind_it_are_lines() -> None:
    """Half way is the mean; behind the last point the last line goes on, before the first none."""
    assert CURVE.verify_at(2, 600) == pytest.approx(2.5)
    assert CURVE.verify_at(5, 100) == pytest.approx(6.0)
    assert CURVE.verify_at(1, 2100) == pytest.approx(3.0)
    assert CURVE.verify_at(1, 1) == 1.0
    assert CURVE.draft_at(2100) == pytest.approx(0.5)


def test_a_cost_that_fell_is_not_thought_to_fall_on() -> None:
    """Noise in the last points must not make deep drafts free."""
    curve = CostCurve((1,), ((1.0, 2.0, 1.5),), (0.1,))
    assert curve.verify_at(30, 1) == 1.5


def test_a_round_is_its_parts() -> None:
    """The pass over all rows, the head's tokens, and what is fixed; found tokens are rows alone."""
    assert CURVE.round_s(1, 100) == pytest.approx(1.5 + 0.1 + 0.05)
    assert CURVE.round_s(1, 100, num_found=1) == pytest.approx(3.0 + 0.1 + 0.05)


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("contexts", ((), (), ())),
        ("contexts", ((5, 5), ((1.0,), (1.0,)), (0.0, 0.0))),
        ("verify_s", ((1, 2), ((1.0,), (1.0, 2.0)), (0.0, 0.0))),
        ("verify_s", ((1,), ((0.0,),), (0.0,))),
        ("verify_s", ((1,), ((float("nan"),),), (0.0,))),
        ("draft_s", ((1,), ((1.0,),), (-1.0,))),
        ("fixed_s", ((1,), ((1.0,),), (0.0,), float("inf"))),
    ],
)
def test_what_is_no_curve_is_named(field: str, given: tuple[object, ...]) -> None:
    """Also as read from a file that somebody edited."""
    with pytest.raises(UsageError, match=field):
        CostCurve(*given)  # type: ignore[arg-type]


def test_tokens_of_a_round() -> None:
    """One more than what is accepted on average."""
    assert expected_tokens([0.5, 0.5], 2) == 1.75
    assert expected_tokens([0.5, 0.5], 0) == 1.0


@pytest.mark.parametrize(("num_experts", "num_chosen"), [(8, 2), (128, 8), (256, 8)])
def test_the_experts_of_a_block_are_those_of_random_rows(num_experts: int, num_chosen: int) -> None:
    """One row reads its own, two share some, and never more than there are."""
    unions = [expected_experts(num_experts, num_chosen, rows) for rows in (1, 2, 4, 8, 1000)]
    assert unions[0] == pytest.approx(num_chosen)
    assert unions[1] == pytest.approx(2 * num_chosen - num_chosen**2 / num_experts)
    assert all(a < b for a, b in pairwise(unions))
    assert unions[-1] <= num_experts


def test_rows_of_a_mixture_of_experts_cost_more() -> None:
    """A pass of one row is the unit; each further one asks for experts of its own."""
    dense = shipped_curve("apple, m4")
    mixed = shipped_curve("apple, m4", Experts(128, 8))
    assert mixed.verify_at(1, 1) == pytest.approx(dense.verify_at(1, 1))
    ratios = [mixed.verify_at(rows, 1) / dense.verify_at(rows, 1) for rows in range(1, 9)]
    assert all(a < b for a, b in pairwise(ratios))
    assert ratios[3] > 2


def test_every_machine_has_a_curve_that_begins_with_one() -> None:
    """Rows never get cheaper, and a kind that nobody knows is some GPU."""
    kinds = {
        machine_kind(device, blas, gpu)
        for device in ("cpu", "gpu")
        for blas in ("mlx", "mkl")
        for gpu in ("", "sm_90", "applegpu_g13s", "applegpu_g15d", "applegpu_g15s", "applegpu_g17s")
    }
    assert len(kinds) == 6
    for kind in kinds:
        times = [shipped_curve(kind).verify_at(rows, 1) for rows in range(1, 17)]
        assert times[0] == 1.0
        assert times == sorted(times)


def test_priors_are_shares() -> None:
    """Of every class, and unpredictable text is one of them."""
    assert all(0 < rate < 1 for rates in SHIPPED_PRIORS.values() for rate in rates)
    assert max(SHIPPED_PRIORS["unpredictable"]) < 0.2
