"""One whole measurement of a small model, and what is said of it."""

import json
from dataclasses import replace

import pytest

from mtplx.bench.report import acceptance_table, cost_table, footnotes, headings, speed_table
from mtplx.bench.run import Plan, Report, run
from mtplx.errors import UsageError
from mtplx.loading.load import LoadedModel
from mtplx.params import SamplingParams

PLAN = Plan(
    depths=(0, 1, 2),
    classes=("chat", "code"),
    params=SamplingParams(temperature=0.0, max_tokens=4),
    num_rounds=1,
    num_prompts=1,
    vs_mlx_lm=False,
)


def silent(done: int, total: int, what: str) -> None:
    pass


@pytest.fixture(scope="module")
def report(tiny_model: LoadedModel) -> Report:
    return run(tiny_model, PLAN, silent)


def test_there_is_a_row_for_each_class_and_arm(report: Report) -> None:
    """Plain decoding first, then the depths, class by class."""
    assert [(row.kind, row.arm, row.depth) for row in report.rows] == [
        (kind, arm, depth)
        for kind in ("chat", "code")
        for arm, depth in (("off", 0), ("mtp", 1), ("mtp", 2))
    ]


def test_the_report_is_json_with_the_promised_names(report: Report) -> None:
    """Rows and machine are there, every number is finite, and nothing is lost on the way."""
    written = report.to_json()
    assert json.loads(json.dumps(written, allow_nan=False)) == written
    machine = written["machine"]
    assert isinstance(machine, dict)
    promised = (
        "chip cores memory os python mlx mlx_lm mtplx blas threads read_gb_per_s model "
        "fingerprint temperature max_tokens prompts rounds date"
    )
    assert set(promised.split()) <= set(machine)
    rows = written["rows"]
    assert isinstance(rows, list)
    assert len(rows) == 6


def test_costs_are_told_for_every_depth(report: Report) -> None:
    """Passes of 1 to k + 1 rows and drafts of 1 to k tokens, k being the deepest."""
    assert len(report.costs.verify_ms) == 3
    assert len(report.costs.draft_ms) == 2
    assert all(taken.median > 0 for taken in (*report.costs.verify_ms, *report.costs.draft_ms))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_plain_decoding_alone_has_no_draft_costs(
    headless_model: LoadedModel, temperature: float
) -> None:
    """A model without a head is measured, and nothing is made up about drafting."""
    params = SamplingParams(temperature=temperature, max_tokens=3)
    found = run(headless_model, replace(PLAN, depths=(0,), params=params), silent)
    assert {row.arm for row in found.rows} == {"off"}
    assert (found.costs.draft_ms, found.costs.draft_step_ms) == ((), None)


def test_the_share_of_the_ceiling_is_bytes_times_tokens_over_read_speed(report: Report) -> None:
    """It says how near plain decoding comes to what memory allows."""
    assert report.weight_bytes is not None
    slow, fast = sorted(row.tokens_per_s.median for row in report.rows if row.arm == "off")
    expected = (slow + fast) / 2 * report.weight_bytes / report.ceiling.all_threads
    assert report.share_of_ceiling == pytest.approx(expected)


def test_tables_have_a_cell_for_each_column(report: Report) -> None:
    """No row is shorter or longer than its heading."""
    tables = [make(report) for make in (speed_table, acceptance_table, cost_table)]
    for table in tables:
        assert {len(row) for row in table.rows} == {len(table.columns)}
    assert [len(table.rows) for table in tables] == [6, 6, 3]


def test_few_rounds_are_said_to_be_few(report: Report) -> None:
    """Where no difference can be told, the report says so instead of a verdict."""
    assert {row.verdict for row in report.rows} == {"", "too few rounds"}
    assert any("fewer than 5 rounds" in line for line in footnotes(report))


def test_an_interruption_is_told(report: Report) -> None:
    """A report over fewer rounds than planned says how many there are."""
    assert not any("Interrupted" in line for line in headings(report))
    planned = replace(report, plan=replace(PLAN, num_rounds=7))
    assert "Interrupted after 1 of 7 rounds." in headings(planned)


@pytest.mark.parametrize(("others", "told"), [(1.4, True), (0.0, False), (None, False)])
def test_other_work_is_told(report: Report, others: float | None, told: bool) -> None:
    """Figures taken on a busy machine come with a line that says so."""
    lines = headings(replace(report, other_cores=others))
    assert any("1.4 cores busy" in line for line in lines) is told


@pytest.mark.parametrize(
    ("change", "message"),
    [({"classes": ("verse",)}, "'verse'"), ({"num_prompts": 999}, "999 prompts")],
)
def test_a_plan_that_cannot_be_followed_is_refused_before_anything_is_measured(
    tiny_model: LoadedModel, change: dict[str, object], message: str
) -> None:
    """The error comes before the first word of progress."""

    def told(done: int, total: int, what: str) -> None:
        raise AssertionError("measuring had begun")

    with pytest.raises(UsageError, match=message):
        run(tiny_model, replace(PLAN, **change), told)  # type: ignore[arg-type]


@pytest.mark.parametrize("num_rounds", [0, -3])
def test_a_number_of_rounds_below_one_is_a_usage_error(num_rounds: int) -> None:
    """The plan itself refuses it."""
    with pytest.raises(UsageError, match=f"rounds is {num_rounds}"):
        replace(PLAN, num_rounds=num_rounds)
