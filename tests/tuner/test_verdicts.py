"""What a run concludes where costs and acceptance are known, without a model or a real clock."""

from collections.abc import Sequence

import pytest

from mtplx.tuner.session import shuffled
from mtplx.tuner.trial import WARM_UP
from tests.tuner.scripted import LIKELY, VERIFY_MS, ScriptedBench, chosen, plan, run

UNLIKELY = (0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1)


def gentle(rows: int, context: int) -> float:
    """Weights are read once for all rows."""
    return VERIFY_MS * (1 + 0.05 * rows)


def steep(rows: int, context: int) -> float:
    """MLX's own BLAS: a block costs its rows."""
    return VERIFY_MS * rows


def test_likely_drafts_at_a_flat_cost_are_saved() -> None:
    """The case that the whole thing is for."""
    outcome = run(ScriptedBench({"chat": LIKELY, "code": LIKELY}, noise=0.03), plan())
    assert outcome.verdict.saves
    assert all(depth >= 4 for depth in chosen(outcome).values())


@pytest.mark.parametrize("acceptance", [UNLIKELY, LIKELY], ids=["unlikely", "likely"])
def test_a_block_that_costs_its_rows_leads_to_plain_decoding(acceptance: Sequence[float]) -> None:
    """However much is accepted, as long as less than everything is."""
    bench = ScriptedBench({"chat": acceptance, "code": acceptance}, steep, noise=0.03)
    outcome = run(bench, plan())
    assert not outcome.verdict.saves
    assert set(chosen(outcome).values()) == {0}


def test_verifying_at_three_times_the_cost_leads_to_plain_decoding() -> None:
    """Any block costs three plain passes, and no draft brings three tokens a round."""

    def dear(rows: int, context: int) -> float:
        return VERIFY_MS * (1 if rows == 1 else 3)

    usual = (0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
    outcome = run(ScriptedBench({"chat": usual, "code": usual}, dear, noise=0.03), plan())
    assert not outcome.verdict.saves
    assert set(chosen(outcome).values()) == {0}


def test_the_depth_may_differ_between_contexts() -> None:
    """Depth 3 is best at 1k, plain decoding at 32k, and both are told."""

    def verify(rows: int, context: int) -> float:
        if context == 1024:
            return VERIFY_MS * (1.0 if rows <= 4 else 0.6 * rows)
        return VERIFY_MS * (1 + 0.95 * (rows - 1))

    outcome = run(
        ScriptedBench({"chat": (0.8,) * 7, "code": (0.8,) * 7}, verify, noise=0.03),
        plan(contexts=(1024, 32768)),
    )
    assert outcome.verdict.saves
    assert chosen(outcome) == {
        ("chat", 1024): 3,
        ("code", 1024): 3,
        ("chat", 32768): 0,
        ("code", 32768): 0,
    }


def test_the_depth_may_differ_between_classes() -> None:
    """Code is drafted deep where chat is not drafted at all."""
    bench = ScriptedBench(
        {"chat": UNLIKELY, "code": LIKELY},
        lambda rows, context: VERIFY_MS * (1 + 0.3 * (rows - 1)),
        noise=0.01,
    )
    outcome = run(bench, plan())
    assert outcome.verdict.saves
    assert chosen(outcome)["chat", 1024] == 0
    assert chosen(outcome)["code", 1024] >= 2


def test_of_equal_depths_the_shallowest_is_taken() -> None:
    """All depths from 2 on bring the same: deeper ones only cost memory and risk."""

    def verify(rows: int, context: int) -> float:
        reached = [0.9, 0.81, *[0.81 * 0.1**n for n in range(1, 6)]]
        return VERIFY_MS * (1 + sum(reached[: rows - 1])) / (1.0 if rows < 3 else 1.5)

    bench = ScriptedBench(
        {"chat": (0.9, 0.9, 0.1, 0.1, 0.1, 0.1, 0.1)}, verify, lambda context: 0.0
    )
    outcome = run(bench, plan(classes=["chat"]))
    assert chosen(outcome) == {("chat", 1024): 2}


def equal_arms(rows: int, context: int) -> float:
    """A pass that costs exactly what LIKELY drafts bring."""
    tokens, reached = 1.0, 1.0
    for rate in LIKELY[: rows - 1]:
        reached *= rate
        tokens += round(100 * reached) / 100
    return VERIFY_MS * tokens + 0.5 * (tokens - 1)


def num_saved(num_runs: int, *, drawn: bool = False) -> int:
    """How many runs over equal arms with 3 % of noise end with something to save."""
    saved = 0
    for seed in range(num_runs):
        bench = ScriptedBench(
            {"chat": LIKELY, "code": LIKELY},
            equal_arms,
            lambda context: 0.0,
            noise=0.03,
            drawn=drawn,
            seed=seed,
        )
        saved += run(bench, plan(contexts=(1024, 8192), seed=seed)).verdict.saves
    return saved


@pytest.mark.slow
@pytest.mark.parametrize(("drawn", "num_pairs"), [(False, 12), (False, 4), (True, 4)])
def test_noise_alone_saves_nothing(
    drawn: bool, num_pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal arms with 3 % of noise: at least 97 of 100 runs find no difference."""
    monkeypatch.setattr("mtplx.tuner.schedule.MAX_PAIRS", num_pairs)
    assert num_saved(100, drawn=drawn) <= 3


@pytest.mark.slow
def test_the_noise_proof_notices_a_weaker_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verdict that asks neither for chance nor for a least effect is found out by it."""
    monkeypatch.setattr("mtplx.tuner.schedule.MAX_PAIRS", 4)
    monkeypatch.setattr("mtplx.tuner.verdict.MAX_CHANCE", 1.0)
    monkeypatch.setattr("mtplx.tuner.verdict.MIN_EFFECT", 0.0)
    monkeypatch.setattr("mtplx.tuner.search.MIN_EFFECT", 0.0)
    assert num_saved(20) > 3


@pytest.mark.parametrize("flat", [True, False], ids=["drafting wins", "plain wins"])
def test_a_machine_that_slows_down_gets_the_same_verdict_either_way(
    flat: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reply is slower than the one before; turning the order of all arms changes nothing."""

    def measured() -> dict[tuple[str, int], int]:
        bench = ScriptedBench(
            {"chat": LIKELY, "code": LIKELY}, gentle if flat else steep, slowing=0.01
        )
        outcome = run(bench, plan())
        assert outcome.verdict.saves == flat
        assert (outcome.verdict.drift is not None) == flat  # with nothing to confirm, none is told
        return chosen(outcome)

    forwards = measured()
    for module in ("search", "confirm"):
        monkeypatch.setattr(
            f"mtplx.tuner.{module}.shuffled", lambda items, numbers: shuffled(items, numbers)[::-1]
        )
    assert measured() == forwards


def test_a_slow_first_reply_is_left_out_and_shown() -> None:
    """What is compiled or read for the first time counts for nothing, and is told."""
    outcome = run(ScriptedBench({"chat": LIKELY, "code": LIKELY}, first_factor=10.0), plan())
    plain = run(ScriptedBench({"chat": LIKELY, "code": LIKELY}), plan())
    first = outcome.trials[0]
    assert first.stage == WARM_UP
    assert first.sample.decode_s == pytest.approx(10 * plain.trials[0].sample.decode_s)
    assert chosen(outcome) == chosen(plain)
    assert outcome.costs == plain.costs
    assert outcome.priors == plain.priors


@pytest.mark.parametrize("slowed", [1.0, 1.3])
def test_a_plain_arm_that_is_slower_than_the_products_is_flagged(slowed: float) -> None:
    """Drafting would win against a lame opponent; nothing is saved then."""
    bench = ScriptedBench({"chat": LIKELY, "code": LIKELY}, noise=0.02, plain_factor=slowed)
    outcome = run(bench, plan())
    assert outcome.verdict.wins
    assert (outcome.verdict.gap is not None) == (slowed > 1)
    assert outcome.verdict.saves == (slowed == 1)
