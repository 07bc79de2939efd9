"""`mtplx tune`: how deep to draft on this machine, measured and kept where it pays."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtplx.cli.interrupts import insistent
from mtplx.cli.model import load_model
from mtplx.cli.options import Request, takes_request
from mtplx.cli.output import is_terminal, notice, write, write_json
from mtplx.cli.tune_output import as_json, show
from mtplx.errors import FileAccessError, UsageError
from mtplx.prompts import CLASSES

if TYPE_CHECKING:
    from mtplx.loading.load import LoadedModel
    from mtplx.params import SamplingParams
    from mtplx.profile import Profile
    from mtplx.tuner.plan import Plan
    from mtplx.tuner.run import Outcome
    from mtplx.tuner.trial import Cell, TileStep, Trial

ALL_CLASSES = ",".join(CLASSES)
_DECIDED_HERE = ("depth", "max_tokens", "stop", "system")

Budget = Annotated[
    str, typer.Option(metavar="TIME", help="How long it may take, as in 90s, 5m or 1h.")
]
Contexts = Annotated[
    str | None,
    typer.Option(
        metavar="N,...",
        help="Lengths of context to measure at, in tokens: 1k,8k.",
        show_default="a short and a long one",
    ),
]
Classes = Annotated[
    str, typer.Option(metavar="CLASS,...", help="Which kinds of content to measure.")
]
MaxDepth = Annotated[int, typer.Option(metavar="N", help="The deepest draft to measure.")]
Retune = Annotated[
    bool, typer.Option("--retune", help="Measure again although there is a profile that fits.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be measured, and measure nothing.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")]
Chart = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Draw the speeds into a .svg or .png file."),
]


@dataclass(frozen=True, slots=True)
class _Run:
    """Everything that is needed to measure and to keep what comes of it."""

    model: "LoadedModel"
    plan: "Plan"
    cells: "tuple[Cell, ...]"
    folder: Path


@partial(takes_request, without=_DECIDED_HERE)
def tune(
    request: Request,
    budget: Budget = "5m",
    contexts: Contexts = None,
    classes: Classes = ALL_CLASSES,
    max_depth: MaxDepth = 7,
    retune: Retune = False,
    dry_run: DryRun = False,
    json: Json = False,
    chart: Chart = None,
) -> None:
    """Measure how deep to draft here, and keep it where that pays.

    Plain decoding and every draft depth answer the same prompts with your own sampling. Where
    drafting is faster beyond chance, a profile is saved, which `mtplx chat` and `mtplx generate`
    then use; otherwise nothing is. Ctrl-C and the end of the budget leave everything as it was.
    """
    from mtplx.paths import ensure_dir

    _check(request, chart)
    run = _prepared(request, budget, contexts, classes, max_depth)
    if dry_run:
        _tell_plan(run, json=json)
        return
    if run.model.depth_costs is not None and not retune:
        _tell_of_old_one(run.model, json=json)
        return
    ensure_dir(run.folder)  # before minutes are spent on what could not be kept
    outcome, profile = _measured(run, quiet=json)
    path, problem = _saved(outcome, profile, run.folder)
    if json:
        write_json(as_json(outcome, profile, path))
    else:
        show(outcome, profile, path)
    if problem is not None:
        _rescue(profile, json=json)
    if chart is not None:
        from mtplx.tuner.chart import write_chart

        write_chart(profile, chart)
        notice(f"The chart is in {chart}.")
    if problem is not None:
        raise problem


def _check(request: Request, chart: Path | None) -> None:
    """Refuse what cannot be meant before anything is loaded."""
    request.params()
    request.drafts()
    if chart is not None:
        from mtplx.tuner.chart import drawer

        drawer(chart)


def _prepared(
    request: Request, budget: str, contexts: str | None, classes: str, max_depth: int
) -> _Run:
    from mtplx.cli.effective import effective_settings
    from mtplx.generate import encode_prompt
    from mtplx.profile import profiles_dir
    from mtplx.tuner.cells import make_cells
    from mtplx.tuner.plan import Plan, parse_budget, parse_classes, parse_contexts, usual_contexts

    kinds, budget_s = parse_classes(classes), parse_budget(budget)
    effective = effective_settings(request.model, request)
    model = load_model(request.model, effective.head)
    if not model.can_draft:
        raise UsageError(f"{model.name} cannot draft: {model.no_head_reason}")
    length = model.target.context_length
    lengths = usual_contexts(length) if contexts is None else parse_contexts(contexts, length)
    params = _without_limits(effective.params)
    plan = Plan(kinds, lengths, params, request.drafts(), budget_s, max_depth)
    cells = make_cells(lambda text: encode_prompt(model.tokenizer, text), kinds, lengths)
    return _Run(model, plan, cells, profiles_dir())


def _without_limits(params: "SamplingParams") -> "SamplingParams":
    """What ends a reply early belongs to other texts than those that are measured."""
    from dataclasses import replace

    return replace(params, stop=(), stop_ids=())


def _tell_plan(run: _Run, *, json: bool) -> None:
    from mtplx.loading.tuned import profile_key
    from mtplx.tuner.schedule import num_replies

    plan = run.plan
    expected = num_replies(len(run.cells), plan.max_depth)
    key = profile_key(run.model)
    if json:
        cells = [
            {"class": c.kind, "context": c.context, "tokens": len(c.token_ids)} for c in run.cells
        ]
        write_json(
            {
                "model": run.model.name,
                "depths": list(range(plan.max_depth + 1)),
                "cells": cells,
                "replies": expected,
                "budget_s": plan.budget_s,
                "key": key,
                "folder": str(run.folder),
                "fitting_profile": run.model.profile_note,
            }
        )
        return
    notice(f"{run.model.name}: plain decoding and depths 1 to {plan.max_depth}, on these prompts:")
    for cell in run.cells:
        notice(f"  {cell.kind:<12}{len(cell.token_ids):>8,} tokens")
    notice(
        f"About {expected} replies in {plan.budget_s:g} s, as long as time allows. Sampling: "
        f"temperature {plan.params.temperature:g}, top-p {plan.params.top_p:g}, law "
        f"{plan.params.law}, drafts {plan.draft.mode}."
    )
    notice("The profile would hold for: " + ", ".join(f"{k} {v}" for k, v in key.items()))
    notice(f"It would be kept in {run.folder}. Nothing was measured.")
    if run.model.profile_note:
        notice(run.model.profile_note)


def _tell_of_old_one(model: "LoadedModel", *, json: bool) -> None:
    if json:
        write_json({"saved": None, "measured": False, "note": model.profile_note})
        return
    notice(f"There is a profile that fits. {model.profile_note}")
    notice("`mtplx profile show` tells what it says; --retune measures again.")


def _measured(run: _Run, *, quiet: bool) -> "tuple[Outcome, Profile]":
    from mtplx.loading.tuned import profile_key
    from mtplx.tuner.conditions import conditions
    from mtplx.tuner.product import ProductBench
    from mtplx.tuner.record import make_profile
    from mtplx.tuner.run import tune as measure

    before = conditions()
    bench = ProductBench(run.model, run.plan.params)
    try:
        with _watching(run, quiet) as tell, insistent(tell) as told:
            outcome = measure(bench, run.cells, run.plan, told)
    except KeyboardInterrupt:
        notice("Stopped. Nothing was saved; what was there before is as it was.")
        raise
    key = profile_key(run.model)
    return outcome, make_profile(outcome, key, run.model.name, before, conditions())


@contextmanager
def _watching(run: _Run, quiet: bool) -> "Iterator[Callable[[Trial | TileStep], None]]":
    """A table that fills where somebody looks at it; else a line per stage, or nothing."""
    from mtplx.tuner.live import LiveTable, doing

    if is_terminal(sys.stderr):
        import rich.console

        with LiveTable(rich.console.Console(stderr=True), run.plan, run.cells) as table:
            yield table.add
        return
    told: set[str] = set()

    def tell(event: "Trial | TileStep") -> None:
        what = doing(event)
        if not quiet and what not in told:
            told.add(what)
            notice(f"{event.at_s:5.0f} s  {what}")

    yield tell


def _saved(
    outcome: "Outcome", profile: "Profile", folder: Path
) -> tuple[Path | None, FileAccessError | None]:
    """Where the profile was saved, None where it was not; and what kept it from being."""
    from mtplx.profile_file import write_profile

    if not outcome.verdict.saves:
        return None, None
    try:
        return write_profile(profile, folder), None
    except FileAccessError as error:
        return None, error


def _rescue(profile: "Profile", *, json: bool) -> None:
    """What could not be saved must not be lost with it."""
    from mtplx.profile_file import as_toml

    if json:
        return
    write(as_toml(profile))
    notice("The profile stands on standard output instead; `mtplx profile import FILE` takes it.")
