"""Telling how far a download is."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int, int, str], None]
"""Called with bytes done, bytes in all (0 where unknown) and "waiting", "downloading", "unpacking"
or "checking", several times a second and from more than one thread."""

_POLL_S = 0.1


def silent(done_bytes: int, total_bytes: int, what: str) -> None:
    """A Progress that nobody sees."""


@contextmanager
def watching(measure: Callable[[], int], total_bytes: int, report: Progress) -> Iterator[None]:
    """Report what `measure` gives while the block runs: not every client tells how far it is."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_POLL_S):
            report(min(measure(), total_bytes), total_bytes, "downloading")

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Keep the hub's client from drawing bars and telling of each attempt."""
    from huggingface_hub import utils

    had_bars = not utils.are_progress_bars_disabled()
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    utils.disable_progress_bars()
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
        if had_bars:
            utils.enable_progress_bars()
