"""A run as it goes on, in a terminal: a table that fills, and how much time is left."""

from collections.abc import Sequence

import rich.box
import rich.console
import rich.live
import rich.table

from mtplx.tuner.plan import Plan, spelt
from mtplx.tuner.search import expected_speeds
from mtplx.tuner.trial import CONFIRM, SEARCH, WARM_UP, Cell, Trial

STAGES = {
    WARM_UP: "reading prompts and warming up",
    SEARCH: "searching: every depth, then the better half",
    CONFIRM: "confirming the best against plain decoding",
    "check": "comparing with plain decoding outside of the tuner",
    "lever": "trying other ways of drafting",
}


class LiveTable:
    """Takes trials as they are measured and shows the speeds so far."""

    def __init__(self, console: rich.console.Console, plan: Plan, cells: Sequence[Cell]) -> None:
        self._plan, self._cells = plan, cells
        self._trials: list[Trial] = []
        self._live = rich.live.Live(
            self._drawn(), console=console, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> "LiveTable":
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def add(self, trial: Trial) -> None:
        """Show one more reply."""
        self._trials.append(trial)
        self._live.update(self._drawn())

    def _drawn(self) -> rich.table.Table:
        last = self._trials[-1] if self._trials else None
        doing = STAGES[last.stage if last else WARM_UP]
        spent_s = last.at_s if last else 0.0
        table = rich.table.Table(
            title=f"{doing} - {spent_s:.0f} of {self._plan.budget_s:.0f} s",
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


def _cell(speed: float | None, best: float) -> str:
    if speed is None:
        return ""
    return f"[bold]{speed:.1f}[/bold]" if speed == best else f"{speed:.1f}"
