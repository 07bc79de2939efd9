"""A run's outcome as the profile that is kept of it."""

import datetime
from collections.abc import Mapping
from typing import Any

from mtplx.errors import ProfileError
from mtplx.profile import Interval, Profile, Trials
from mtplx.tuner.conditions import Conditions, remarks
from mtplx.tuner.levers import Lever
from mtplx.tuner.plan import Plan
from mtplx.tuner.run import Outcome
from mtplx.tuner.speeds import speed_intervals
from mtplx.tuner.trial import CONFIRM, SEARCH, Cell, Sample, Trial

_NUMBER = (int, float)
_KINDS: Mapping[str, tuple[type, ...]] = {
    "stage": (str,),
    "class": (str,),
    "context": (int,),
    "depth": (int,),
    "seed": (int,),
    "at_s": _NUMBER,
    "tokens": (int,),
    "rounds": (int,),
    "decode_s": _NUMBER,
    "draft_s": _NUMBER,
    "verify_s": _NUMBER,
    "by_head": (int,),
    "drafted": (list,),
    "accepted": (list,),
    "lever": (str,),
}
COLUMNS = tuple(_KINDS)


def make_profile(
    outcome: Outcome,
    key: Mapping[str, str | int | float],
    model: str,
    before: Conditions,
    after: Conditions,
) -> Profile:
    """model: its name. before, after: how the machine was."""
    return Profile(
        key=key,
        measured=_measured(outcome, model, before, after),
        choices=outcome.verdict.choices,
        curve=outcome.costs.curve,
        priors=outcome.priors,
        tiles={name: (t.columns, t.simdgroups) for name, t in outcome.tiles.items()},
        window=next((lever.window for lever in _winning(outcome) if lever.window), None),
        notes=notes(outcome, before, after),
        trials=Trials(COLUMNS, tuple(map(_row, outcome.trials))),
    )


def notes(outcome: Outcome, before: Conditions, after: Conditions) -> tuple[str, ...]:
    """What a person should know of a run, a line each."""
    lines = list(remarks(before, after))
    verdict = outcome.verdict
    if verdict.drift is not None:
        lines.append(
            f"Not comparable: plain decoding ran at {_times(verdict.drift)} of its earlier speed "
            "in the second half of the run. Ratios compare replies that ran next to each other and "
            "stand; speeds of different moments do not."
        )
    if verdict.gap is not None:
        lines.append(
            f"Not trusted: plain decoding ran at {_times(verdict.gap)} of the speed that it has "
            "outside of the tuner, so drafting was compared with too slow a rival."
        )
    if outcome.tiles:
        named = ", ".join(
            f"{name} ({tile.columns} columns, {tile.simdgroups} SIMD-groups)"
            for name, tile in outcome.tiles.items()
        )
        lines.append(f"Kernels are faster with other tiles than usual, and get them: {named}.")
    lines += [
        f"{lever.flag} was {_times(lever.ratio)} as fast for {lever.kind} at {lever.context} "
        f"tokens; it is {'used from now on' if lever.window else 'yours to set'}."
        for lever in _winning(outcome)
    ]
    return tuple(lines)


def _winning(outcome: Outcome) -> list[Lever]:
    return [lever for lever in outcome.levers or () if lever.wins]


def _times(span: Interval) -> str:
    return f"{span.median:.2f} times ({span.low:.2f} to {span.high:.2f})"


def _measured(
    outcome: Outcome, model: str, before: Conditions, after: Conditions
) -> dict[str, object]:
    plan, verdict = outcome.plan, outcome.verdict
    overall = verdict.ratio
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "model": model,
        **_asked(plan),
        "took_s": outcome.took_s,
        "reply_tokens": outcome.num_tokens,
        "ratio": None if overall is None else [overall.median, overall.low, overall.high],
        "chance_of_a_fluke": verdict.chance,
        "parts_off_by": outcome.costs.error,
        "is_comparable": verdict.drift is None,
        **{f"before: {name}": value for name, value in before.told.items()},
        **{f"after: {name}": value for name, value in after.told.items()},
    }


def _asked(plan: Plan) -> dict[str, object]:
    params = plan.params
    return {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "law": params.law,
        "draft": plan.draft.mode,
        "lookup": plan.draft.lookup,
        "budget_s": plan.budget_s,
        "max_depth": plan.max_depth,
        "seed": plan.seed,
    }


def _row(trial: Trial) -> tuple[object, ...]:
    sample = trial.sample
    return (
        trial.stage,
        trial.cell.kind,
        trial.cell.context,
        trial.depth,
        trial.seed,
        trial.at_s,
        sample.num_tokens,
        sample.num_rounds,
        sample.decode_s,
        sample.draft_s,
        sample.verify_s,
        sample.num_from_head,
        list(sample.drafted),
        list(sample.accepted),
        trial.lever,
    )


def trials_of(profile: Profile) -> tuple[Trial, ...]:
    """The trials of a profile that was read from its file.

    Raises ProfileError where its table is none of this version, or has a value that cannot be.
    """
    if profile.trials.columns != COLUMNS:
        raise ProfileError(
            f"The trials of the profile have the columns {', '.join(profile.trials.columns)}, and "
            f"not {', '.join(COLUMNS)}. Measure again with `mtplx tune --retune`."
        )
    rows = enumerate(profile.trials.rows, 1)
    return tuple(_trial(number, dict(zip(COLUMNS, row, strict=True))) for number, row in rows)


def _trial(number: int, row: dict[str, Any]) -> Trial:
    for name, value in row.items():
        is_meant = type(value) in _KINDS[name] and (
            all(type(count) is int for count in value) if isinstance(value, list) else True
        )
        if not is_meant or (name in ("rounds", "decode_s") and not value > 0):
            raise ProfileError(
                f"Row {number} of the profile's trials has {name} {value!r:.60}, which cannot be. "
                "Measure again with `mtplx tune --retune`."
            )
    sample = Sample(
        num_tokens=row["tokens"],
        num_rounds=row["rounds"],
        decode_s=row["decode_s"],
        draft_s=row["draft_s"],
        verify_s=row["verify_s"],
        num_from_head=row["by_head"],
        drafted=tuple(row["drafted"]),
        accepted=tuple(row["accepted"]),
    )
    cell = Cell(row["class"], row["context"])
    return Trial(row["stage"], cell, row["depth"], row["seed"], row["at_s"], sample, row["lever"])


def speeds_of(profile: Profile) -> dict[Cell, dict[int, Interval]]:
    """Tokens per second of every cell and depth, in the order of the profile's choices."""
    counted = [trial for trial in trials_of(profile) if trial.stage in (SEARCH, CONFIRM)]
    cells = [Cell(choice.kind, choice.context) for choice in profile.choices]
    return {cell: speed_intervals([t for t in counted if t.cell == cell]) for cell in cells}
