import select
import threading
from collections.abc import Callable, Iterator

import pytest

from mtplx.chat.worker import Job, Worker, WorkError
from mtplx.errors import UsageError


@pytest.fixture(scope="module")
def worker() -> Worker:
    return Worker()


def results(worker: Worker, job: Job[int]) -> list[int]:
    """All results of a job, waited for as the conversation does."""
    found = []
    while True:
        has_ended = job.has_ended
        found += job.take()
        if has_ended:
            return found
        assert select.select([worker.fileno()], [], [], 10)[0], "no news for ten seconds"
        worker.heard()


def counting(cancelled: Callable[[], bool]) -> Iterator[int]:
    """Counts until it is told to stop."""
    number = 0
    while not cancelled():
        yield number
        number += 1


def test_every_result_arrives_in_order(worker: Worker) -> None:
    """What a job produces is taken once and in order, and its end is news too."""
    assert results(worker, worker.start(lambda cancelled: range(500))) == list(range(500))


def test_jobs_run_one_after_the_other_in_one_thread(worker: Worker) -> None:
    """Every job runs in the same thread, which is not the caller's."""

    def names(cancelled: Callable[[], bool]) -> Iterator[int]:
        yield threading.get_ident()

    jobs = [worker.start(names) for _ in range(3)]
    found = [results(worker, job) for job in jobs]
    assert found[0] == found[1] == found[2] != [threading.get_ident()]


def test_a_cancelled_job_ends_and_the_next_begins(worker: Worker) -> None:
    """A job that asks ends when it was cancelled; one that had not begun never does."""
    endless = worker.start(counting)
    waiting = worker.start(counting)
    after = worker.start(lambda cancelled: range(2))
    waiting.cancel()
    endless.cancel()
    assert results(worker, after) == [0, 1]
    assert endless.has_ended
    assert results(worker, waiting) == []
    assert worker.wait_idle(10)


@pytest.mark.parametrize(
    ("error", "raised"),
    [(ZeroDivisionError("on\npurpose"), WorkError), (UsageError("on purpose"), UsageError)],
)
def test_an_error_is_raised_where_the_results_are_taken(
    worker: Worker, error: Exception, raised: type[Exception]
) -> None:
    """What a job raises comes after its results, as one line, and the worker lives on."""

    def failing(cancelled: Callable[[], bool]) -> Iterator[int]:
        yield 1
        raise error

    job = worker.start(failing)
    assert results(worker, job) == [1]
    with pytest.raises(raised, match="on purpose"):
        job.check()
    assert results(worker, worker.start(lambda cancelled: range(1))) == [0]
