"""`mtplx train-head`: train an MTP head for a model that has none."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtplx.cli.interrupts import insistent
from mtplx.cli.model import load_model
from mtplx.cli.output import is_terminal, notice
from mtplx.errors import UsageError
from mtplx.training.engine import Engine as EngineName

if TYPE_CHECKING:
    import rich.console
    import rich.progress

    from mtplx.loading.load import LoadedModel
    from mtplx.training.lesson import Report, Tell
    from mtplx.training.plan import Plan

LINE_EVERY_S = 10.0  # where nobody looks at a bar


Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A llama-type model: path, hub id or alias.")
]
Text = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="Ordinary text or code in UTF-8 to train on too; may be repeated. "
        "Without any, the source files of Python's own library.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        dir_okay=False,
        help="Where the head goes; use it with --head FILE. "
        "Without this it goes where it is found by itself.",
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        file_okay=False,
        help="Where the run keeps what it makes, to go on later. "
        "Without this, a folder of the model's own in the cache.",
    ),
]
OwnTokens = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=1,
        help="Tokens of text that the model writes for it, rounded up to whole files.",
    ),
]
TextTokens = Annotated[
    int, typer.Option(metavar="N", min=0, help="Tokens of ordinary text, at most.")
]
Shortlist = Annotated[
    int, typer.Option(metavar="N", min=64, help="Vocabulary entries that drafts come from.")
]
Blocks = Annotated[int, typer.Option(metavar="N", min=1, max=4, help="Decoder blocks of the head.")]
Steps = Annotated[int, typer.Option(metavar="N", min=1, help="Training steps one position deep.")]
UnrolledSteps = Annotated[
    int, typer.Option(metavar="N", min=1, help="Training steps three positions deep, after.")
]
Workers = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Processes that write text.",
        show_default="one a core, as far as memory goes",
    ),
]
Engine = Annotated[
    EngineName,
    typer.Option(
        help="What writes and trains. PyTorch (`pip install 'torch>=2.13'`) is three times as "
        "fast on a CPU with matrix units for bfloat16 (AMX)."
    ),
]
Seed = Annotated[
    int, typer.Option(metavar="N", min=0, max=2**32 - 1, help="For text and training.")
]


def train_head(
    model: Model = "smollm2",
    *,
    text: Text = None,
    out: Out = None,
    folder: Folder = None,
    own_tokens: OwnTokens = 400_000,
    text_tokens: TextTokens = 160_000,
    shortlist: Shortlist = 8192,
    blocks: Blocks = 1,
    steps: Steps = 2400,
    unrolled_steps: UnrolledSteps = 800,
    workers: Workers = None,
    engine: Engine = "mlx",
    seed: Seed = 1,
) -> None:
    """Train an MTP head for a model that has none.

    The model writes text, and the head learns to foresee it. This takes an hour or two on two
    cores for the default model. Ctrl-C stops it; the same command goes on where it stopped. The
    head is found by itself afterwards, and never changes what the model says, only how fast.
    """
    from mtplx.training.plan import Plan

    loaded = load_model(model)
    plan = Plan(
        model=str(loaded.path),
        folder=folder or _default_folder(loaded.path),
        own_tokens=own_tokens,
        texts=_texts(text),
        text_tokens=text_tokens,
        shortlist_size=shortlist,
        num_blocks=blocks,
        one_step=steps,
        unrolled=unrolled_steps,
        num_workers=workers,
        engine=engine,
        seed=seed,
    )
    _train(plan, loaded, out)


def _texts(given: list[Path] | None) -> tuple[Path, ...]:
    from mtplx.training.prompts import library_files

    return tuple(given) if given else library_files()


def _default_folder(model: Path) -> Path:
    from mtplx.loading.fingerprint import fingerprint
    from mtplx.paths import cache_dir

    return cache_dir() / "train" / fingerprint(model)


def _train(plan: "Plan", loaded: "LoadedModel", out: Path | None) -> None:
    from mtplx.loading.find_head import trained_head_path
    from mtplx.loading.fingerprint import fingerprint
    from mtplx.paths import ensure_dir
    from mtplx.training.pipeline import finish, run

    target = out or trained_head_path(fingerprint(loaded.path))
    if target.suffix != ".safetensors":
        raise UsageError(f"--out {target}: a head is a .safetensors file, so call it that.")
    if loaded.path.is_dir() and target.parent.resolve() == loaded.path.resolve():
        beside = loaded.path.with_name(f"{loaded.path.name}.mtp.safetensors")
        raise UsageError(
            f"--out {target}: a file in the model's folder would be taken for part of the model. "
            f"Beside the folder it is found as {beside}."
        )
    ensure_dir(target.parent)
    notice(f"The run is kept in {plan.folder}; Ctrl-C stops it, the same command goes on.")
    with _shown() as tell, insistent(tell) as told:
        result = run(plan, loaded, told)
    finish(result.head, target)
    for line in result.lines():
        typer.echo(line)
    typer.echo(f"The head is in {target}.")


@contextmanager
def _shown() -> Iterator["Tell"]:
    """Progress as a bar on a terminal, elsewhere as a line now and then."""
    if not is_terminal(sys.stderr):
        yield _Lines().tell
        return
    import rich.console

    with bars(rich.console.Console(stderr=True)) as progress:
        yield _Bars(progress).tell


def bars(console: "rich.console.Console") -> "rich.progress.Progress":
    """Bars with counts, the time that is left, and figures."""
    import rich.progress as parts

    return parts.Progress(
        parts.TextColumn("{task.description}"),
        parts.BarColumn(),
        parts.TextColumn("{task.completed:,.0f} of {task.total:,.0f}"),
        parts.TimeRemainingColumn(),
        parts.TextColumn("{task.fields[figures]}"),
        console=console,
    )


class _Lines:
    """Each part of the work when it begins, then every few seconds, and every result."""

    def __init__(self) -> None:
        self._what, self._told_s = "", 0.0

    def tell(self, report: "Report") -> None:
        now_s = time.monotonic()
        if report.result:
            notice(report.result)
        elif report.what != self._what or now_s - self._told_s >= LINE_EVERY_S:
            self._what, self._told_s = report.what, now_s
            figures = f", {report.figures}" if report.figures else ""
            notice(f"{report.what}: {report.done:,} of {report.total:,}{figures}")


class _Bars:
    """A bar for each part of the work, and results above them."""

    def __init__(self, progress: "rich.progress.Progress") -> None:
        self._progress = progress
        self._tasks: dict[str, rich.progress.TaskID] = {}

    def tell(self, report: "Report") -> None:
        if report.what not in self._tasks:
            self._tasks[report.what] = self._progress.add_task(
                report.what, total=report.total, figures=""
            )
        self._progress.update(
            self._tasks[report.what],
            completed=report.done,
            total=report.total,
            figures=report.figures,
        )
        if report.result:
            self._progress.console.print(report.result, highlight=False, markup=False)
