"""The thread that does all of the model's work.

A pass through the model cannot be interrupted and a long prompt takes many of them, so whoever
watches the keyboard must not be the one who waits. MLX ties arrays that are not computed yet to the
thread that made them, so nothing of a model is touched by any other thread.
"""

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from mtplx.errors import MtplxError

Item = TypeVar("Item")
Cancelled = Callable[[], bool]


class WorkError(MtplxError):
    """Work that ended with an error nobody foresaw."""


class Job(Generic[Item]):
    """Work that was given to a worker, and the results it has so far."""

    def __init__(self, produce: Callable[[Cancelled], Iterable[Item]], wake: Callable[[], None]):
        self._produce: Callable[[Cancelled], Iterable[Item]] | None = produce
        self._wake = wake
        self._results: SimpleQueue[Item] = SimpleQueue()
        self._cancelled = threading.Event()
        self._ended = threading.Event()
        self._error: BaseException | None = None

    def cancel(self) -> None:
        """Ask the work to end; it does so when it asks next, which may take a while."""
        self._cancelled.set()

    @property
    def has_ended(self) -> bool:
        """Whether no result will follow those that `take` gives from now on."""
        return self._ended.is_set()

    def take(self) -> list[Item]:
        """The results since the last call."""
        results = []
        while True:
            try:
                results.append(self._results.get_nowait())
            except Empty:
                return results

    def check(self) -> None:
        """Raise what ended the work, if it was an error: WorkError for one nobody foresaw."""
        error = self._error
        if isinstance(error, Exception) and not isinstance(error, MtplxError):
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise WorkError(
                f"The model's work failed: {reason}. What was said before is still there; "
                "try once more, or with other settings."
            ) from error
        if error is not None:
            raise error

    def run(self) -> None:
        """Do the work; for the worker's thread."""
        try:
            # What was cancelled before its turn came is not begun.
            produce, self._produce = self._produce, None  # what it holds goes with this call
            assert produce is not None
            items = [] if self._cancelled.is_set() else produce(self._cancelled.is_set)
            del produce
            for item in items:
                self._results.put(item)
                self._wake()
        except BaseException as error:  # raised again where `check` is called
            self._error = error
        self._ended.set()
        self._wake()


class Worker:
    """A thread that does one job after the other."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job[Any]] = SimpleQueue()
        self._last: Job[Any] | None = None
        self._idle = threading.Event()
        self._idle.set()
        self._readable, self._writable = os.pipe()
        os.set_blocking(self._readable, False)
        os.set_blocking(self._writable, False)
        threading.Thread(target=self._run, name="model", daemon=True).start()

    def start(self, produce: Callable[[Cancelled], Iterable[Item]]) -> Job[Item]:
        """Have `produce(cancelled)` iterated over when everything before it is done."""
        job = self._last = Job(produce, self.wake)
        self._idle.clear()
        self._jobs.put(job)
        return job

    def cancel(self) -> None:
        """Cancel what was started last."""
        if self._last is not None:
            self._last.cancel()

    def fileno(self) -> int:
        """Readable when a job has news or `wake` was called."""
        return self._readable

    def wake(self) -> None:
        """Make `fileno()` readable. Safe in a signal handler."""
        with suppress(BlockingIOError):  # so full that it is readable
            os.write(self._writable, b".")

    def heard(self) -> None:
        """Make `fileno()` unreadable until there is news again."""
        with suppress(BlockingIOError):
            while os.read(self._readable, 4096):
                pass

    def wait_idle(self, timeout_s: float) -> bool:
        """Whether all jobs are done after waiting so long at most."""
        return self._idle.wait(timeout_s)

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            job.run()
            if self._jobs.empty():
                self._idle.set()
