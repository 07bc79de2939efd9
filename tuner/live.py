"""A run as it goes on, in a terminal: a table that fills, and how much time is left."""

from collections.abc import Sequence

import rich.box
import rich.console
import rich.live
import rich.table

from mtplx.tuner.plan import Plan, spelt
from mtplx.tuner.search import expected_speeds
from mtplx.tuner.trial import CONFIRM, SEARCH, WARM_UP, Cell, TileStep, Trial

STAGES = {
    WARM_UP: "reading prompts and warming up",
    SEARCH: "searching: every depth, then the better half",
    CONFIRM: "confirming the best against plain decoding",
    "check": "comparing with plain decoding outside of the tuner",
    "lever": "trying other ways of drafting",
}


def doing(event: Trial | TileStep) -> str:
    """What is going on, in a few words."""
    if isinstance(event, Trial):
        return STAGES[event.stage]
    if event.done < event.total:
        return f"timing kernels for {event.packing}"
    return STAGES[WARM_UP]


class LiveTable:
    """Takes trials as they are measured and shows the speeds so far, and what is going on."""

    def __init__(self, console: rich.console.Console, plan: Plan, cells: Sequence[Cell]) -> None:
        self._plan, self._cells = plan, cells
        self._trials: list[Trial] = []
        self._last: Trial | TileStep | None = None
        self._live = rich.live.Live(
            self._drawn(), console=console, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> "LiveTable":
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def add(self, event: Trial | TileStep) -> None:
        """Show one more reply, or which kernel is next: at once, before it is compiled."""
        self._last = event
        if isinstance(event, Trial):
            self._trials.append(event)
        self._live.update(self._drawn(), refresh=isinstance(event, TileStep))

    def _drawn(self) -> rich.table.Table:
        last = self._last
        spent_s = last.at_s if last else 0.0
        table = rich.table.Table(
            title=f"{_at(last)} - {spent_s:.0f} of {self._plan.budget_s:.0f} s",
            title_justify="left",
            caption="tokens per second by draft depth, so far",
            caption_justify="left",
            box=rich.box.SIMPLE_HEAD,
            pad_edge=False,
        )
        table.add_column("class")
        for name in ("context", "plain", *map(str, range(1, self._plan.max_depth + 1))):
            table.add_column(name, justify="right")
        for cell in self._cells:
            table.add_row(cell.kind, spelt(cell.context), *self._speeds(cell))
        return table

    def _speeds(self, cell: Cell) -> list[str]:
        counted = [t for t in self._trials if t.cell == cell and t.stage in (SEARCH, CONFIRM)]
        speeds = expected_speeds(counted) if any(t.depth for t in counted) else {}
        best = max(speeds.values(), default=0.0)
        return [_cell(speeds.get(depth), best) for depth in range(self._plan.max_depth + 1)]


def _at(event: Trial | TileStep | None) -> str:
    """What is going on, with how far it has come where that is known."""
    if event is None:
        return STAGES[WARM_UP]
    if isinstance(event, TileStep) and event.done < event.total:
        return f"{doing(event)}, {event.done} of {event.total}"
    return doing(event)


def _cell(speed: float | None, best: float) -> str:
    if speed is None:
        return ""
    return f"[bold]{speed:.1f}[/bold]" if speed == best else f"{speed:.1f}"
