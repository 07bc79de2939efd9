"""What a run shows while it goes on: in a terminal a table and a line of status above it."""

from typing import Any

import rich.console

from mtplx.tuner.live import LiveTable
from mtplx.tuner.trial import WARM_UP, Sample, TileStep, Trial
from tests.chat.screen import Screen
from tests.tuner.scripted import RATES, ScriptedBench, cells, plan, run

PLAN = plan(budget_s=300)
SAMPLE = Sample(8, 8, 0.5, 0, 0.4, 0, (), ())


def shown() -> tuple[Screen, LiveTable]:
    screen = Screen(100, 30)
    file: Any = screen
    console = rich.console.Console(file=file, force_terminal=True, width=100)
    return screen, LiveTable(console, PLAN, cells(PLAN))


def first(screen: Screen) -> str:
    return next(line for line in screen.lines() if line)


def test_kernels_are_named_while_they_are_compiled() -> None:
    """At once, before the next of them keeps the machine busy; the line above the table is another
    one as soon as they are done."""
    screen, table = shown()
    with table:
        table.add(TileStep("q4_k", 13, 110, 4.2))
        assert first(screen) == "timing kernels for q4_k, 13 of 110 - 4 of 300 s"
        table.add(TileStep("q6_k", 56, 110, 8.8))
        assert first(screen) == "timing kernels for q6_k, 56 of 110 - 9 of 300 s"
        table.add(TileStep("q6_k", 110, 110, 12.0))
        assert first(screen) == "reading prompts and warming up - 12 of 300 s"
    assert screen.text() == ""


def test_a_reply_is_shown_after_kernels() -> None:
    """It is what is going on from then on."""
    screen, table = shown()
    with table:
        table.add(TileStep("q4_k", 13, 110, 4.2))
        table.add(Trial(WARM_UP, cells(PLAN)[0], 0, 0, 20.0, SAMPLE))
        table.add(TileStep("q4_k", 110, 110, 21.0))  # which draws it
        assert first(screen) == "reading prompts and warming up - 21 of 300 s"


def test_a_whole_run_leaves_nothing_on_the_screen() -> None:
    screen, table = shown()
    with table:
        run(ScriptedBench(RATES, compile_s={"q4_k": 1.0}), plan(), table.add)
    assert screen.text() == ""
