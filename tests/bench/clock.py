"""A clock for kernels that are not run."""

from collections.abc import Callable

from mtplx.bench.kernels import Run


class Clock:
    """Times arms without running them: each call takes what its number is given."""

    def __init__(self, seconds: Callable[[int], float]) -> None:
        self.seconds = seconds
        self.calls: list[int] = []

    def __call__(self, run: Run) -> float:
        self.calls.append(id(run))
        return self.seconds(len(self.calls))
