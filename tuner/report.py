"""What a run found, in words and tables of plain text."""

from collections.abc import Mapping, Sequence

from mtplx.profile import Interval, Profile
from mtplx.tuner.plan import spelt
from mtplx.tuner.record import speeds_of
from mtplx.tuner.run import Outcome
from mtplx.tuner.trial import WARM_UP, Cell, Trial


def choice_lines(profile: Profile) -> list[str]:
    """What is best for each class and context, a line each under a heading."""
    rows = [("class", "context", "best", "plain/s", "drafted/s", "x plain", "90 % interval", "")]
    for choice in profile.choices:
        best = f"depth {choice.depth}" if choice.depth else "plain"
        rows.append(
            (
                choice.kind,
                spelt(choice.context),
                best,
                _speed(choice.plain),
                _speed(choice.drafted),
                "" if choice.ratio is None else f"{choice.ratio.median:.2f}",
                "" if choice.ratio is None else _ends(choice.ratio),
                _remark(choice.depth, choice.tried, choice.ratio),
            )
        )
    return aligned(rows, num_left=1)


def _remark(depth: int, tried: int, ratio: Interval | None) -> str:
    if depth or not tried:
        return "" if depth else "no depth promised more"
    if ratio is None:
        return f"depth {tried} was not confirmed in time"
    return f"depth {tried}: {'slower' if ratio.high < 1 else 'no difference'}"


def speed_lines(profile: Profile) -> list[str]:
    """Tokens per second of every depth, as is to be expected from all replies."""
    speeds = speeds_of(profile)
    depths = sorted({depth for found in speeds.values() for depth in found})
    rows = [("class", "context", "plain", *(str(depth) for depth in depths[1:]))]
    rows += [
        (cell.kind, spelt(cell.context), *(_speed(found.get(depth)) for depth in depths))
        for cell, found in speeds.items()
    ]
    return aligned(rows, num_left=1)


def cost_lines(profile: Profile) -> list[str]:
    """What rounds cost here, in milliseconds."""
    curve = profile.curve
    rows = [
        (
            "context",
            *(f"{rows} row{'s' * (rows > 1)}" for rows in range(1, curve.max_depth + 2)),
            "draft step",
        )
    ]
    for context, verify_s, draft_s in zip(
        curve.contexts, curve.verify_s, curve.draft_s, strict=True
    ):
        times = [f"{1000 * (s + curve.fixed_s):.1f}" for s in verify_s]
        rows.append((spelt(context), *times, f"{1000 * draft_s:.1f}"))
    return aligned(rows, num_left=0)


def acceptance_lines(profile: Profile) -> list[str]:
    """How often drafted tokens are accepted if those before them are, in per cent."""
    deepest = max((len(rates) for rates in profile.priors.values()), default=0)
    rows = [("accepted, %", *(str(place) for place in range(1, deepest + 1)))]
    rows += [
        (kind or "any", *(f"{100 * rate:.0f}" for rate in rates), *[""] * (deepest - len(rates)))
        for kind, rates in profile.priors.items()
    ]
    return aligned(rows, num_left=1)


def aligned(rows: Sequence[Sequence[str]], num_left: int) -> list[str]:
    """Cells in columns: the first `num_left` and the last to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    last = len(widths) - 1
    ends_in_words = rows[0][last] == ""
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width)
            if place < num_left or (place == last and ends_in_words)
            else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def verdict_line(outcome: Outcome) -> str:
    """The verdict in a sentence or two."""
    verdict = outcome.verdict
    if verdict.gap is not None:
        return "The measurement cannot be trusted, so nothing is saved."
    if not any(choice.tried for choice in verdict.choices):
        return "Drafting does not pay here: no depth promised to be faster than plain decoding."
    assert verdict.ratio is not None
    measured = (
        f"{verdict.ratio.median:.2f} times as fast as plain decoding ({_ends(verdict.ratio)})"
    )
    if not verdict.wins:
        less = "slower" if verdict.ratio.high < 1 else "no difference beyond chance"
        return (
            f"Drafting does not pay here: at the depths that promised most it was {measured}, "
            f"which is {less}."
        )
    places = [choice for choice in verdict.choices if choice.depth]
    everywhere = len(places) == len(verdict.choices)
    where = "everywhere" if everywhere else f"in {len(places)} of {len(verdict.choices)} cases"
    return f"Drafting pays {where}: over all that was confirmed it was {measured}."


def warm_up_line(trials: Sequence[Trial]) -> str:
    """What was left out, and how far off it was."""
    left_out = [trial for trial in trials if trial.stage == WARM_UP]
    usual: Mapping[tuple[Cell, int], list[float]] = _speeds_by_arm(trials)
    slowest = 1.0
    for trial in left_out:
        speeds = usual.get((trial.cell, trial.depth))
        if speeds:
            slowest = max(slowest, sorted(speeds)[len(speeds) // 2] / trial.sample.tokens_per_s)
    return f"Left out: {len(left_out)} replies of warm-up, the slowest {slowest:.1f} times slower."


def _speeds_by_arm(trials: Sequence[Trial]) -> dict[tuple[Cell, int], list[float]]:
    found: dict[tuple[Cell, int], list[float]] = {}
    for trial in trials:
        if trial.stage != WARM_UP:
            found.setdefault((trial.cell, trial.depth), []).append(trial.sample.tokens_per_s)
    return found


def _speed(span: Interval | None) -> str:
    return "" if span is None else f"{span.median:.1f}"


def _ends(span: Interval) -> str:
    return f"{span.low:.2f} to {span.high:.2f}"
