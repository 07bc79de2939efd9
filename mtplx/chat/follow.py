"""Work that goes on in the worker's thread, followed here with an eye on keys and signals."""

import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TypeVar

from mtplx.chat.reader import LeaveError, Reader, leaving_signals
from mtplx.chat.worker import Job, Worker

PATIENCE_S = 0.5  # how long work that was stopped may take to end by itself
TICK_S = 0.25  # how often something is told while nothing comes
Item = TypeVar("Item")


class Signals:
    """What signals have asked for. wake: called in a signal handler."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.interrupted = False
        self._leaving: int | None = None
        self._wake = wake

    def check(self) -> None:
        """Raise LeaveError if this process was asked to end."""
        if self._leaving is not None:
            raise LeaveError(self._leaving)

    @property
    def asks_to_leave(self) -> bool:
        return self._leaving is not None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Have SIGINT stop what runs, and SIGTERM and SIGHUP end everything in good order."""

        def interrupt(number: int, frame: FrameType | None) -> None:
            self.interrupted = True
            self._wake()

        def leave(number: int, frame: FrameType | None) -> None:
            self._leaving = number
            self._wake()

        actions = {signal.SIGINT: interrupt, **dict.fromkeys(leaving_signals(), leave)}
        before = {number: signal.signal(number, action) for number, action in actions.items()}
        try:
            yield
        finally:
            for number, action in before.items():
                signal.signal(number, action)

    @contextmanager
    def resizing(self) -> Iterator[None]:
        """Be woken when the terminal is resized."""
        before = signal.signal(signal.SIGWINCH, lambda number, frame: self._wake())
        try:
            yield
        finally:
            signal.signal(signal.SIGWINCH, before)


@dataclass(frozen=True, slots=True)
class Watch:
    """Follows jobs of a worker."""

    worker: Worker
    reader: Reader
    signals: Signals

    def follow(
        self,
        job: Job[Item],
        *,
        cancels: bool = True,
        fold: Callable[[], None] = lambda: None,
    ) -> Iterator[Item | None]:
        """The results of a job as they come, and None at least every TICK_S where there is none.

        Ctrl-C and signals cancel the job, which may then give its last results, but is not waited
        for long; without `cancels` it goes on and is left at once. fold: called for Ctrl-O. Raises
        the job's error.
        """
        deadline = None
        with self.signals.resizing():
            while True:
                has_ended = job.has_ended
                yield from job.take()
                if has_ended:
                    job.check()
                    return
                left_s = TICK_S if deadline is None else deadline - time.monotonic()
                if left_s <= 0:
                    return
                if self._wait(left_s, fold) and deadline is None:
                    if not cancels:
                        return
                    job.cancel()
                    deadline = time.monotonic() + PATIENCE_S
                yield None

    def _wait(self, timeout_s: float, fold: Callable[[], None]) -> bool:
        """Wait for news; whether what runs is to be stopped."""
        watched = [self.worker.fileno(), *self.reader.watched()]
        ready, _, _ = select.select(watched, [], [], timeout_s)
        self.worker.heard()
        is_stopped = False
        if any(file in ready for file in watched[1:]):
            pressed = self.reader.pressed()
            is_stopped = pressed.interrupt
            if pressed.fold:
                fold()
        return is_stopped or self.signals.interrupted or self.signals.asks_to_leave
