"""Ctrl-C during long work: an interrupt that is lost on the way is raised again."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import ParamSpec

P = ParamSpec("P")


@contextmanager
def insistent(tell: Callable[P, None]) -> Iterator[Callable[P, None]]:
    """`tell`, which raises KeyboardInterrupt if one was raised before and work went on.

    Code in other languages may drop the exception that a signal handler raised under it; importing
    PyTorch or reading arrays does, now and then. Where SIGINT is ignored or somebody else's, as in
    a background job or another thread, it stays so.
    """
    came = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        raise KeyboardInterrupt

    def told(*args: P.args, **kwargs: P.kwargs) -> None:
        if came:
            raise KeyboardInterrupt
        tell(*args, **kwargs)

    handles = threading.current_thread() is threading.main_thread()
    if not handles or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield tell
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield told
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
