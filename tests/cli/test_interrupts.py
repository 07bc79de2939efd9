"""Ctrl-C is heeded even where other code loses it."""

import os
import signal
import threading

import pytest

from mtplx.cli.interrupts import insistent


def lost_interrupt() -> None:
    """SIGINT under code that drops the exception, as some libraries written in C do."""
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_that_was_lost_is_raised_when_next_something_is_told() -> None:
    told: list[str] = []
    with insistent(told.append) as tell:
        tell("before")
        lost_interrupt()
        with pytest.raises(KeyboardInterrupt):
            tell("after")
    assert told == ["before"]


def test_what_answers_the_signal_afterwards_is_what_did_before() -> None:
    with insistent(print):
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """A shell starts background jobs so."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        told: list[str] = []
        with insistent(told.append) as tell:
            os.kill(os.getpid(), signal.SIGINT)
            tell("after")
        assert told == ["after"]
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_has_no_signals_to_answer() -> None:
    """Only the main thread may set a handler; elsewhere telling is telling."""
    told: list[str] = []

    def work() -> None:
        with insistent(told.append) as tell:
            tell("something")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert told == ["something"]
