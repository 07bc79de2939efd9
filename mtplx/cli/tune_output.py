"""What `mtplx tune` says of a run that has ended."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from mtplx.cli.output import notice

if TYPE_CHECKING:
    from mtplx.profile import Profile
    from mtplx.tuner.run import Outcome


def show(outcome: "Outcome", profile: "Profile", path: Path | None) -> None:
    """Tables and the verdict on standard error. path: where it was saved, None where it was not."""
    from mtplx.tuner import report

    lines = ["", *report.choice_lines(profile), ""]
    lines += ["Tokens per second by depth:", *report.speed_lines(profile), ""]
    lines += ["Milliseconds of a round:", *report.cost_lines(profile), ""]
    lines.append(report.warm_up_line(outcome.trials))
    lines.append(
        f"The parts of a round add up to its wall time within {outcome.costs.error:.0%}, in "
        f"replies of {outcome.num_tokens} tokens."
    )
    if outcome.levers is None and outcome.verdict.saves:
        lines.append("Other ways of drafting were not tried: the budget was used up.")
    lines += profile.notes
    lines.append(report.verdict_line(outcome))
    if path is not None:
        lines.append(f"Saved: {path}. `mtplx chat` and `mtplx generate` use it from now on.")
    elif not outcome.verdict.saves:
        lines.append("Nothing was saved.")
    for line in lines:
        notice(line)


def as_json(outcome: "Outcome", profile: "Profile", path: Path | None) -> dict[str, object]:
    """Everything as plain values, the raw replies included."""
    verdict = outcome.verdict
    return {
        "saved": None if path is None else str(path),
        "measured": True,
        "wins": verdict.wins,
        "ratio": None if verdict.ratio is None else asdict(verdict.ratio),
        "chance_of_a_fluke": verdict.chance,
        "is_comparable": verdict.drift is None,
        "is_trusted": verdict.gap is None,
        "choices": [asdict(choice) for choice in profile.choices],
        "costs": asdict(profile.curve),
        "parts_off_by": outcome.costs.error,
        "acceptance": {kind or "any": list(rates) for kind, rates in profile.priors.items()},
        "levers": None if outcome.levers is None else [asdict(lever) for lever in outcome.levers],
        "notes": list(profile.notes),
        "key": dict(profile.key),
        "conditions": dict(profile.measured),
        "trials": {"columns": profile.trials.columns, "rows": profile.trials.rows},
    }
