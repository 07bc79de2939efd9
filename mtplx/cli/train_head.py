"""`mtplx train-head`: train an MTP head for a model that has none."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtplx.cli.model import load_model
from mtplx.cli.output import is_terminal, notice

if TYPE_CHECKING:
    from mtplx.training.pipeline import Report, Tell


def train_head(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A llama-type model: path, hub id or alias.")
    ] = "smollm2",
    *,
    text: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Ordinary text or code to train on too; may be repeated. "
            "Without any, Python's own library and its documentation strings.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where the head goes, in place of where it is found."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the run keeps what it makes, to go on later."),
    ] = None,
    own_tokens: Annotated[
        int, typer.Option(metavar="N", min=1, help="Tokens of text that the model writes for it.")
    ] = 400_000,
    text_tokens: Annotated[
        int, typer.Option(metavar="N", min=0, help="Tokens of ordinary text, at most.")
    ] = 160_000,
    shortlist: Annotated[
        int, typer.Option(metavar="N", min=64, help="Vocabulary entries that drafts come from.")
    ] = 8192,
    blocks: Annotated[
        int, typer.Option(metavar="N", min=1, max=4, help="Decoder blocks of the head.")
    ] = 1,
    steps: Annotated[
        int, typer.Option(metavar="N", min=1, help="Training steps one position deep.")
    ] = 2400,
    unrolled_steps: Annotated[
        int, typer.Option(metavar="N", min=1, help="Training steps three positions deep, after.")
    ] = 800,
    workers: Annotated[
        int, typer.Option(metavar="N", min=1, help="Processes that write text.")
    ] = os.cpu_count() or 1,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="For text and training.")] = 1,
) -> None:
    """Train an MTP head for a model that has none.

    The model writes text, and the head learns to foresee it. This takes an hour or two on two
    cores for the default model. Ctrl-C stops it; the same command goes on where it stopped. The
    head is found by itself afterwards, and never changes what the model says, only how fast.
    """
    loaded = load_model(model)

    from mtplx.loading.find_head import trained_head_path
    from mtplx.loading.fingerprint import fingerprint
    from mtplx.paths import cache_dir, ensure_dir
    from mtplx.training.pipeline import finish, run
    from mtplx.training.plan import Plan
    from mtplx.training.prompts import library_files

    trunk = fingerprint(loaded.path)
    plan = Plan(
        model=str(loaded.path),
        folder=folder or cache_dir() / "train" / trunk,
        own_tokens=own_tokens,
        texts=tuple(text) if text else library_files(),
        text_tokens=text_tokens,
        shortlist_size=shortlist,
        num_blocks=blocks,
        one_step=steps,
        unrolled=unrolled_steps,
        num_workers=workers,
        seed=seed,
    )
    target = out or trained_head_path(trunk)
    ensure_dir(target.parent)
    notice(f"The run is kept in {plan.folder}; Ctrl-C stops it, the same command goes on.")
    with _shown() as tell:
        result = run(plan, loaded, tell)
    finish(result.head, target)
    for line in result.lines():
        typer.echo(line)
    typer.echo(f"The head is in {target}.")


@contextmanager
def _shown() -> Iterator["Tell"]:
    """Progress as a bar on a terminal, elsewhere as a line whenever there are new figures."""
    if not is_terminal(sys.stderr):
        last = [""]

        def tell_lines(report: "Report") -> None:
            line = f"{report.what}: {report.figures}" if report.figures else report.what
            if line != last[0]:
                last[0] = line
                notice(f"{line} ({report.done:,} of {report.total:,})")

        yield tell_lines
        return
    import rich.console
    import rich.progress as bars

    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.TextColumn("{task.completed:,.0f} of {task.total:,.0f}"),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=rich.console.Console(stderr=True)) as progress:
        tasks: dict[str, bars.TaskID] = {}
        shown = [""]

        def tell_bar(report: "Report") -> None:
            if report.what not in tasks:
                tasks[report.what] = progress.add_task(report.what)
            progress.update(tasks[report.what], completed=report.done, total=report.total)
            if report.figures and report.figures != shown[0]:
                shown[0] = report.figures
                progress.console.print(report.figures, highlight=False)

        yield tell_bar
