"""`mtplx bench`: plain decoding and each draft depth, side by side on this machine."""

import json as json_format
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from mtplx.cli.interrupts import insistent
from mtplx.cli.model import load_model
from mtplx.cli.options import DEFAULT_MODEL, Head, Model
from mtplx.cli.output import is_terminal, notice, write
from mtplx.errors import UsageError
from mtplx.params import SamplingParams
from mtplx.prompts import CLASSES

if TYPE_CHECKING:
    from rich.console import Console

    from mtplx.bench.report import Table
    from mtplx.bench.run import Plan, Report
    from mtplx.loading.load import LoadedModel

DEFAULT_DEPTHS = "off,1,2,3,auto"
DEFAULT_CLASSES = ",".join(CLASSES)


Depths = Annotated[
    str | None,
    typer.Option(
        metavar="off,N,auto,...",
        help="Tokens to draft per round. Plain decoding is always measured along.",
        show_default=DEFAULT_DEPTHS,
    ),
]
Classes = Annotated[
    str, typer.Option(metavar="CLASS,...", help="Which of the prompts that ship to answer.")
]
Temperature = Annotated[
    float, typer.Option(metavar="T", help="Temperature; 0 takes the likeliest token.")
]
MaxTokens = Annotated[int, typer.Option(metavar="N", help="End a reply after this many tokens.")]
Rounds = Annotated[
    int, typer.Option(metavar="N", help="Repeat all of it; below 5 no difference is told.")
]
Prompts = Annotated[int, typer.Option(metavar="N", help="Prompts of each class.")]
Versus = Annotated[
    str | None,
    typer.Option(metavar="mlx-lm", help="Also measure mlx-lm's own loop over the same weights."),
]
Kernels = Annotated[
    bool,
    typer.Option(
        "--kernels",
        help="Measure how fast kernels multiply and choose tokens; needs a Metal GPU and no model.",
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Leave the tables out, print the line of JSON alone.")
]


def bench(
    model: Model = DEFAULT_MODEL,
    head: Head = None,
    depths: Depths = None,
    classes: Classes = DEFAULT_CLASSES,
    temp: Temperature = 0.0,
    max_tokens: MaxTokens = 96,
    rounds: Rounds = 5,
    prompts: Prompts = 2,
    vs: Versus = None,
    kernels: Kernels = False,
    json: Json = False,
) -> None:
    """Measure plain decoding and each draft depth on this machine.

    All ways of decoding answer the same prompts in one process, in turns. Tables go to standard
    error; the last line of standard output is one JSON object. Ctrl-C ends it with the rounds that
    are complete.
    """
    if kernels:
        _bench_kernels(quiet=json)
        return
    if vs not in (None, "mlx-lm"):
        raise UsageError(f"--vs is {vs!r}, but only mlx-lm can be compared with.")
    params = SamplingParams(temperature=temp, max_tokens=max_tokens)
    chosen = [name.strip() for name in classes.split(",")]
    plan = _plan(depths, chosen, params, rounds, prompts, vs is not None)
    loaded = load_model(model, head)
    report = _measured(loaded, _possible(plan, loaded, asked=depths is not None), quiet=json)
    if not json:
        _show(report)
    write(json_format.dumps(report.to_json(), allow_nan=False) + "\n")
    if report.num_rounds < rounds:
        raise typer.Exit(130)


def _bench_kernels(*, quiet: bool) -> None:
    from mtplx.bench.ceiling import read_ceiling
    from mtplx.bench.kernels import (
        FORMATS,
        NUM_BYTES,
        kernel_table,
        matrices,
        measure_format,
        require_gpu,
    )
    from mtplx.bench.sampler_kernels import STEPS, measure_step, steps
    from mtplx.machine import machine

    require_gpu()
    ceiling = read_ceiling(NUM_BYTES).all_threads
    products, sampler = [], []
    total = len(FORMATS) + len(STEPS)
    with _progress(quiet) as tell, insistent(tell) as progress:
        for done, (name, matrix) in enumerate(matrices()):
            progress(done, total, name)
            products += measure_format(name, matrix, ceiling)
        for done, (name, cases) in enumerate(steps(), len(FORMATS)):
            progress(done, total, name)
            sampler += measure_step(name, cases, ceiling)
    if not quiet:
        share = f"and the share of the {ceiling / 1e9:.0f} GB/s this machine reads"
        _console().print(_drawn(kernel_table("format", products, f"GB/s of weights, {share}")))
        title = f"GB/s of what a step takes and gives, {share}"
        _console().print(_drawn(kernel_table("step", sampler, title)))
    told = {
        "kernels": [row.to_json("format") for row in products],
        "sampler": [row.to_json("step") for row in sampler],
        "machine": {**machine(), "read_gb_per_s": ceiling / 1e9},
    }
    write(json_format.dumps(told, allow_nan=False) + "\n")


def _plan(
    depths: str | None,
    classes: list[str],
    params: SamplingParams,
    rounds: int,
    prompts: int,
    vs_mlx_lm: bool,
) -> "Plan":
    """Raises UsageError for what cannot be meant, before anything is loaded."""
    from mtplx.bench.arms import parse_depths
    from mtplx.bench.run import Plan
    from mtplx.prompts import chosen_prompts

    chosen_prompts(classes, prompts)
    return Plan(
        depths=parse_depths(depths if depths is not None else DEFAULT_DEPTHS),
        classes=tuple(classes),
        params=params,
        num_rounds=rounds,
        num_prompts=prompts,
        vs_mlx_lm=vs_mlx_lm,
    )


def _possible(plan: "Plan", model: "LoadedModel", *, asked: bool) -> "Plan":
    """The plan without drafting where the model cannot draft and nobody asked for it."""
    from dataclasses import replace

    if asked or model.can_draft:
        return plan
    notice(f"Measuring plain decoding only: {model.no_head_reason}")
    return replace(plan, depths=(0,))


def _measured(model: "LoadedModel", plan: "Plan", *, quiet: bool) -> "Report":
    from mtplx.bench.run import run
    from mtplx.machine import busy_cores, is_busy

    if is_busy(busy_cores()):
        notice("Other processes keep this machine busy. Stop them for figures that mean something.")
    with _progress(quiet) as tell, insistent(tell) as progress:
        return run(model, plan, progress)


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[int, int, str], None]]:
    """A bar where somebody looks at it; else a line per stage and round, or nothing."""
    if is_terminal(sys.stderr):
        import rich.console
        import rich.progress as bars

        columns = ("{task.description}", bars.BarColumn(), bars.TimeRemainingColumn())
        console = rich.console.Console(stderr=True)
        with bars.Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("")
            yield lambda done, total, what: bar.update(
                task, completed=done, total=total, description=what
            )
        return
    shown: set[str] = set()

    def tell(done: int, total: int, what: str) -> None:
        stage = what.partition(":")[0]
        if not quiet and stage not in shown:
            shown.add(stage)
            notice(stage)

    yield tell


def _show(report: "Report") -> None:
    """The headings, tables and footnotes on standard error."""
    from mtplx.bench.report import acceptance_table, cost_table, footnotes, headings, speed_table
    from mtplx.text.safe import printable

    console = _console()
    for line in headings(report):
        console.print(printable(line), soft_wrap=True)
    for make_table in (speed_table, acceptance_table, cost_table):
        console.print(_drawn(make_table(report)))
    for line in footnotes(report):
        console.print(line, soft_wrap=True)


def _console() -> "Console":
    """Standard error, wide where nobody's window limits it."""
    import rich.console

    console = rich.console.Console(stderr=True, highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 160
    return console


def _drawn(table: "Table") -> object:
    import rich.box
    import rich.table

    drawn = rich.table.Table(
        title=table.title,
        title_justify="left",
        box=rich.box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for place, column in enumerate(table.columns):
        drawn.add_column(column, justify="left" if place < table.num_left else "right")
    for row in table.rows:
        drawn.add_row(*row)
    return drawn
