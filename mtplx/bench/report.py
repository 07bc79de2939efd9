"""A report in words and tables, for whoever draws them."""

from collections.abc import Sequence
from dataclasses import dataclass

from mtplx.bench.arms import MTP
from mtplx.bench.rows import MIN_ROUNDS, Row, Spread
from mtplx.bench.run import Report
from mtplx.machine import is_busy


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as text. The first `num_left` columns are names, the rest are numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_left: int


def headings(report: Report) -> list[str]:
    """What was measured on what, and the read ceiling, a line each."""
    at, plan, ceiling = report.machine, report.plan, report.ceiling
    memory = at["memory"]
    assert isinstance(memory, int)
    threads = f" on {at['threads']} threads" if at["threads"] else ""
    lines = [
        f"{at['chip']}, {at['cores']} cores, {memory / 2**30:.1f} GiB, {at['os']}",
        f"Python {at['python']}, MLX {at['mlx']}, mlx-lm {at['mlx_lm']}, MTPLX {at['mtplx']}, "
        f"BLAS {at['blas']}{threads}",
        f"{at['model']}: temperature {plan.params.temperature:g}, at most "
        f"{plan.params.max_tokens} tokens, prompts per class: {plan.num_prompts}, rounds: "
        f"{report.num_rounds}",
    ]
    read = f"This machine reads {ceiling.all_threads / 1e9:.1f} GB/s"
    if ceiling.device == "cpu":
        read += f" with all cores, {ceiling.one_thread / 1e9:.1f} GB/s with one"
    share = report.share_of_ceiling
    if share is not None and report.weight_bytes is not None:
        read += (
            f". Plain decoding reads {report.weight_bytes / 1e9:.2f} GB of weights per token: "
            f"{share:.0%} of that speed"
        )
    lines.append(read + ".")
    if is_busy(report.other_cores):
        lines.append(
            f"Other processes kept {report.other_cores:.1f} cores busy meanwhile: these figures "
            "are too low and noisy."
        )
    if report.num_rounds < plan.num_rounds:
        lines.append(f"Interrupted after {report.num_rounds} of {plan.num_rounds} rounds.")
    return lines


def speed_table(report: Report) -> Table:
    """Each class and arm: decode speed and its ratio to plain decoding."""
    columns = ("class", "arm", "tokens/s", "p20-p80", "vs off", "p20-p80", "verdict")
    rows = tuple(
        (
            *_names(row),
            f"{row.tokens_per_s.median:.1f}",
            _ends(row.tokens_per_s, 1),
            f"{row.ratio_vs_off.median:.2f}",
            _ends(row.ratio_vs_off, 2) if row.verdict else "",
            row.verdict,
        )
        for row in report.rows
    )
    return Table("Speed", columns, rows, num_left=2)


def acceptance_table(report: Report) -> Table:
    """Each class and arm: tokens per round, what was accepted, and what else there is to see."""
    columns = ("class", "arm", "tokens/round", "prefill/s", "same tokens", "accepted by place")
    rows = tuple(
        (
            *_names(row),
            "" if row.acceptance_length is None else f"{row.acceptance_length:.2f}",
            f"{row.prefill_tokens_per_s:.0f}",
            "" if row.same_tokens_as_off is None else f"{row.same_tokens_as_off:.0%}",
            _shares(row.acceptance_per_position),
        )
        for row in report.rows
    )
    return Table("Acceptance", columns, rows, num_left=2)


def cost_table(report: Report) -> Table:
    """What a pass and a draft cost by their length."""
    passes, drafts = report.costs.verify_ms, report.costs.draft_ms
    rows = []
    for i, taken in enumerate(passes):
        draft = drafts[i - 1] if 1 <= i <= len(drafts) else None
        rows.append(
            (
                str(i),
                f"{taken.median:.2f}",
                _ends(taken, 2),
                f"{taken.median / passes[0].median:.2f}",
                f"{draft.median:.2f}" if draft else "",
                _ends(draft, 2) if draft else "",
            )
        )
    return Table(
        f"Milliseconds at {report.costs.context} tokens of context",
        ("depth", "verify", "p20-p80", "vs depth 0", "draft", "p20-p80"),
        tuple(rows),
        num_left=1,
    )


def footnotes(report: Report) -> list[str]:
    """How to read the tables, a line each."""
    lines = [
        "Medians over rounds. Decode speed without prefill; a ratio compares arms that ran next to "
        "each other.",
        "No difference: the ratio's spread holds 1, or the rounds disagree about its direction.",
    ]
    if report.num_rounds < MIN_ROUNDS:
        lines.append(f"With fewer than {MIN_ROUNDS} rounds no difference can be told from chance.")
    step = report.costs.draft_step_ms
    if step is not None:
        lines.append(f"One draft step: {step.median:.2f} ms ({_ends(step, 2)}).")
    return lines


def _names(row: Row) -> tuple[str, str]:
    return row.kind, f"{row.arm} {row.depth}" if row.arm == MTP else row.arm


def _ends(spread: Spread, digits: int) -> str:
    return f"{spread.p20:.{digits}f}-{spread.p80:.{digits}f}"


def _shares(shares: Sequence[float]) -> str:
    return " ".join(f"{share:.2f}".removeprefix("0") for share in shares)
