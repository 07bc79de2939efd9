"""Loading a model for a verb, with a bar on standard error where something is fetched."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mtplx.cli.output import is_terminal, notice

if TYPE_CHECKING:
    import rich.progress

    from mtplx.loading.load import LoadedModel
    from mtplx.loading.sources import Progress


def load_model(model: str, head: Path | None = None) -> "LoadedModel":
    """`mtplx.load` with a progress bar."""
    from mtplx.loading.load import load

    with showing_progress() as progress:
        return load(model, head=head, progress=progress)


@contextmanager
def showing_progress() -> Iterator["Progress"]:
    """What to give as `progress`: nothing is shown until it is called for the first time."""
    shown = _Bar() if is_terminal(sys.stderr) else _Lines()
    try:
        yield shown.report
    finally:
        shown.close()


class _Lines:
    """A line for each new thing, where nobody looks at a bar."""

    def __init__(self) -> None:
        self._last = ""
        self._lock = threading.Lock()

    def report(self, done_bytes: int, total_bytes: int, what: str) -> None:
        with self._lock:
            if what != self._last:
                self._last = what
                size = f" ({total_bytes / 1e6:.0f} MB)" if total_bytes else ""
                notice(_TEXTS.get(what, what) + size)

    def close(self) -> None:
        pass


class _Bar:
    """A bar that goes when it is done."""

    def __init__(self) -> None:
        self._progress: rich.progress.Progress | None = None
        self._tasks: dict[str, rich.progress.TaskID] = {}
        self._lock = threading.Lock()

    def report(self, done_bytes: int, total_bytes: int, what: str) -> None:
        with self._lock:
            progress = self._started()
            if what not in self._tasks:
                for task in self._tasks.values():
                    progress.remove_task(task)
                self._tasks = {what: progress.add_task(_TEXTS.get(what, what))}
            progress.update(self._tasks[what], completed=done_bytes, total=total_bytes or None)

    def _started(self) -> "rich.progress.Progress":
        if self._progress is None:
            import rich.console
            import rich.progress as bars

            self._progress = bars.Progress(
                bars.TextColumn("{task.description}"),
                bars.BarColumn(),
                bars.DownloadColumn(),
                bars.TransferSpeedColumn(),
                bars.TimeRemainingColumn(),
                console=rich.console.Console(stderr=True),
                transient=True,
            )
            self._progress.start()
        return self._progress

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()


_TEXTS = {
    "downloading": "Fetching the model, once",
    "unpacking": "Checking the model",
    "waiting": "Waiting for another process that fetches the model",
}
