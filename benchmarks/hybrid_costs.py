"""What verifying and undoing cost on a hybrid: passes of 1 to 8 rows, and the share of rollback.

    python -m benchmarks.hybrid_checkpoint hybrid
    python -m benchmarks.hybrid_costs hybrid --rounds 7

Each round times every arm once, each round starting with another arm, after two rounds that are not
counted. An arm is a pass of M rows with its logits, or a drafted round of M rows of which all are
kept, or all but the last; bringing the caches up to date is timed apart. What the latter takes more
than the former is the price of rollback, given as a share of its round. Times are of the clock, and
of all cores' work for this process, which says more on a machine that others use too. The bound
that memory sets comes first, one line of JSON last.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtplx.blas import preload

if TYPE_CHECKING:
    from mtplx.state import DecodeState

WARM_UPS = 2


@dataclass(frozen=True, slots=True)
class Time:
    """Seconds on the clock, and of work on all cores."""

    wall_s: float
    cpu_s: float

    def __add__(self, other: "Time") -> "Time":
        return Time(self.wall_s + other.wall_s, self.cpu_s + other.cpu_s)

    def __sub__(self, other: "Time") -> "Time":
        return Time(self.wall_s - other.wall_s, self.cpu_s - other.cpu_s)


@dataclass(frozen=True, slots=True)
class Drafted:
    """A drafted round's parts."""

    draft: Time
    verify: Time
    keep: Time

    @property
    def whole(self) -> Time:
        return self.draft + self.verify + self.keep


@dataclass(frozen=True, slots=True)
class Turn:
    """Every arm once: passes by rows, rounds by rows of which all, or all but one, were kept."""

    passes: dict[int, Time]
    kept: dict[int, Drafted]
    cut: dict[int, Drafted]


def timed(run: Callable[[], object]) -> Time:
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    run()
    return Time(time.perf_counter() - wall_s, time.process_time() - cpu_s)


def verify(state: "DecodeState", num_rows: int) -> Time:
    """A pass that is then undone altogether."""
    import mlx.core as mx

    block = mx.arange(num_rows, dtype=mx.int32) + 65
    spent = timed(lambda: mx.eval(state.forward(block).logits))
    state.keep([])
    return spent


def drafted(state: "DecodeState", num_rows: int, num_kept: int) -> Drafted:
    """A draft, a pass over it, and its first rows kept."""
    import mlx.core as mx

    drafter, tokens = state.drafter, [65 + i for i in range(num_rows)]
    assert drafter is not None

    def greedy(logits: mx.array, step: int) -> tuple[mx.array, None]:
        return mx.argmax(logits, axis=-1).astype(mx.int32), None

    def draft() -> None:
        rows = state.draft_input(tokens[0])
        assert rows is not None
        mx.eval(drafter.propose(rows, num_rows - 1, greedy).token_ids)

    def keep() -> None:
        state.keep(tokens[:num_kept])
        mx.eval([layer.state for layer in state.cache])

    drafting = timed(draft)
    passing = timed(lambda: mx.eval(state.forward(mx.array(tokens, dtype=mx.int32)).logits))
    return Drafted(drafting, passing, timed(keep))


def measure(state: "DecodeState", max_rows: int, num_rounds: int) -> list[Turn]:
    """Every arm in turn, after two turns that are not counted."""
    arms = [("pass", rows) for rows in range(1, max_rows + 1)]
    arms += [(kind, rows) for rows in range(2, max_rows + 1) for kind in ("kept", "cut")]
    turns = []
    for index in range(WARM_UPS + num_rounds):
        turn = Turn({}, {}, {})
        for place in range(len(arms)):
            kind, rows = arms[(index + place) % len(arms)]
            if kind == "pass":
                turn.passes[rows] = verify(state, rows)
            elif kind == "kept":
                turn.kept[rows] = drafted(state, rows, rows)
            else:
                turn.cut[rows] = drafted(state, rows, rows - 1)
        turns.append(turn)
    return turns[WARM_UPS:]


def row(turns: list[Turn], num_rows: int, clock: str) -> dict[str, Any]:
    """The figures of one number of rows by one clock: wall_s or cpu_s."""
    from mtplx.bench.rows import spread

    def of(value: Time) -> float:
        return float(getattr(value, clock))

    passes = spread([1000 * of(turn.passes[num_rows]) for turn in turns])
    ratio = spread([of(turn.passes[num_rows]) / of(turn.passes[1]) for turn in turns])
    found: dict[str, Any] = {
        "rows": num_rows,
        "verify_ms": [passes.p20, passes.median, passes.p80],
        "verify_ratio": ratio.median,
    }
    if num_rows == 1:
        return found
    more = [
        (of(turn.cut[num_rows].keep - turn.kept[num_rows].keep), of(turn.cut[num_rows].whole))
        for turn in turns
    ]
    share = spread([extra / whole for extra, whole in more])
    return found | {
        "draft_ms": spread([1000 * of(turn.cut[num_rows].draft) for turn in turns]).median,
        "keep_all_ms": spread([1000 * of(turn.kept[num_rows].keep) for turn in turns]).median,
        "keep_less_ms": spread([1000 * of(turn.cut[num_rows].keep) for turn in turns]).median,
        "rollback_share": [share.p20, share.median, share.p80],
    }


def tell(rows: list[dict[str, Any]]) -> None:
    """A table on standard error."""
    for found in rows:
        low, middle, high = found["verify_ms"]
        line = f"{found['rows']} rows: {middle:7.1f} ms ({low:.1f} to {high:.1f})"
        line += f", t(M)/t(1) {found['verify_ratio']:.2f}"
        if "rollback_share" in found:
            line += f", keep {found['keep_all_ms']:.2f} or {found['keep_less_ms']:.2f} ms"
            line += f", rollback {found['rollback_share'][1]:.1%} of the round"
        print(line, file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--blas", default="auto")
    options = parser.parse_args()
    blas = preload(options.blas)

    from mtplx.bench.ceiling import read_ceiling, weight_bytes_per_token
    from mtplx.loading.load import load
    from mtplx.machine import machine

    model = load(options.folder)
    num_bytes = weight_bytes_per_token(model.target) or 0
    ceiling = read_ceiling(num_bytes)
    bound_ms = 1000 * num_bytes / ceiling.all_threads
    print(
        f"{num_bytes / 1e6:.0f} MB per pass, {ceiling.all_threads / 1e9:.1f} GB/s: no pass takes "
        f"less than {bound_ms:.1f} ms. {blas}",
        file=sys.stderr,
    )
    state = model.new_state()
    state.begin([33 + i % 90 for i in range(options.context)], drafting=True)
    turns = measure(state, options.rows, options.rounds)
    found = {}
    for clock in ("wall_s", "cpu_s"):
        rows = [row(turns, count, clock) for count in range(1, options.rows + 1)]
        print({"wall_s": "By the clock:", "cpu_s": "By work:"}[clock], file=sys.stderr)
        tell(rows)
        found[clock] = rows
    print(json.dumps({**machine(), "bound_ms": bound_ms, "context": options.context, **found}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
