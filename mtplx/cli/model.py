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

    from mtplx.config import Config
    from mtplx.loading.load import LoadedModel
    from mtplx.loading.progress import Progress
    from mtplx.loading.resolve import Places


def load_model(
    model: str,
    head: Path | None = None,
    progress: "Progress | None" = None,
    *,
    distributed: bool = False,
) -> "LoadedModel":
    """`mtplx.load` with the user's folders and aliases.

    progress: told of a download; None shows a bar.
    """
    from mtplx.config import read_config
    from mtplx.loading.load import load

    places = places_of(read_config())
    if progress is not None:
        return load(model, head=head, places=places, progress=progress)
    with showing_progress() as bar:
        loaded = load(model, head=head, places=places, progress=bar, distributed=distributed)
    if loaded.context_note is not None:
        notice(loaded.context_note)
    return loaded


def find_model(model: str, progress: "Progress | None" = None) -> Path:
    """The files of a model, fetched if they are not on this machine.

    progress: told of a download; None shows a bar.
    """
    from mtplx.config import read_config
    from mtplx.loading.resolve import resolve

    places = places_of(read_config())
    if progress is not None:
        return resolve(model, places=places, progress=progress)
    with showing_progress() as bar:
        return resolve(model, places=places, progress=bar)


def places_of(config: "Config") -> "Places":
    """Where the settings say that models are."""
    from mtplx.loading.resolve import Places

    return Places(config.folders, config.aliases)


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
    "checking": "Checking the model",
    "waiting": "Waiting for another process that fetches the model",
}
