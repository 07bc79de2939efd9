"""Depths chosen on cost tables that others have published: `python -m tests.depth_replay`.

Each row is a machine and a text: seconds by rows and by drafted token, and how likely each drafted
token is accepted. Every fixed depth has a speed there, and so has the policy, with the table as its
profile and with only what is shipped. Luck is left out: a round counts for the tokens that its
draft brings on average.

- v100: github.com/dnv2003/v100-skinny, README and results: Qwen3.8-27B on four V100. Rounds of
  20.4, 25.2 and 37.2 ms with 3, 7 and 15 drafted tokens, of which each takes 0.817 ms; 17.35 ms
  and 1.07 for each token for fewer; plain decoding at 86.3 tokens/s. Acceptance is what its speeds
  come to. At 65k tokens a drafted token takes 3.65 ms, and 65.5 (plain), 76.3 (3) and 54.7 (7)
  tokens/s were measured.
- M4 Pro, M3 Max, M3 Ultra: products of 4-bit matrices by rows, ml-explore/mlx issues 3839, 3863 and
  4265, taken for a whole round. A drafted token is 2 % of a pass with a shortlist of the vocabulary
  and 6 % without, and three kinds of text are accepted as models of that size are said to be.
"""

from dataclasses import dataclass
from itertools import pairwise

from mtplx.costs import CostCurve, expected_tokens
from mtplx.depth import MAX_DEPTH
from tests.depth_harness import Run, auto, run, static_rates, steady

NUM_ROUNDS = 1000  # of the best fixed depth; the policy writes as many tokens as they bring
_STEP_S = 0.817e-3


@dataclass(frozen=True, slots=True)
class Row:
    """One machine with one text. kind: what is shipped for it. context: tokens before it."""

    name: str
    kind: str
    machine: CostCurve
    rates: tuple[float, ...]
    context: int = 500


@dataclass(frozen=True, slots=True)
class Verdict:
    """Tokens per second: plain, of the best fixed depth, and of the policy with each knowledge."""

    row: Row
    plain: float
    best_depth: int
    best: float
    tuned: Run
    shipped: Run


def verdict(row: Row, num_rounds: int = NUM_ROUNDS) -> Verdict:
    """What the policy makes of it."""
    rates = static_rates(row.machine, row.rates, row.context)
    best = max(range(len(rates)), key=lambda k: rates[k])
    num_tokens = round(num_rounds * expected_tokens(row.rates, best))
    runs = [
        run(policy, row.machine, steady(*row.rates), num_tokens, context=row.context)
        for policy in (auto(row.machine), auto(kind=row.kind))
    ]
    return Verdict(row, rates[0], best, rates[best], *runs)


def _through(points: dict[int, float]) -> tuple[float, ...]:
    """Values for 1 to 17 rows: straight lines through the points, the last of which goes on."""
    lines = list(pairwise(sorted(points.items())))
    values = []
    for rows in range(1, MAX_DEPTH + 2):
        (low, at_low), (high, at_high) = next((x for x in lines if rows <= x[1][0]), lines[-1])
        values.append(at_low + (at_high - at_low) * (rows - low) / (high - low))
    return tuple(values)


def _rates(tokens: dict[int, float]) -> tuple[float, ...]:
    """Acceptance with which drafts of these lengths bring so many tokens a round."""
    rates: list[float] = []
    for depth, wanted in sorted(tokens.items()):
        low, high = 0.0, 1.0
        for _ in range(50):
            middle = (low + high) / 2
            tried = [*rates, *[middle] * (depth - len(rates))]
            low, high = (middle, high) if expected_tokens(tried, depth) < wanted else (low, middle)
        rates += [low] * (depth - len(rates))
    return (*rates, *[rates[-1]] * (MAX_DEPTH - len(rates)))


def _v100() -> list[Row]:
    round_s = {3: 20.4e-3, 7: 25.2e-3, 15: 37.2e-3}
    few = {k + 1: (17.35 + 1.07 * k) * 1e-3 - k * _STEP_S for k in (1, 2)}
    rest = {k + 1: time_s - k * _STEP_S for k, time_s in round_s.items()}
    short = _through({1: 1 / 86.3, **few, **rest})
    long = _through({1: 1 / 65.5, 4: 2.55 / 76.3 - 3 * 3.65e-3, 8: 2.63 / 54.7 - 7 * 3.65e-3})
    machine = CostCurve((500, 65_000), (short, long), (_STEP_S, 3.65e-3))
    speeds = {
        "doc to json": (195.1, 309.5, 392.1),
        "log to json": (195.6, 307.1, 391.4),
        "json": (184.9, 268.6, 270.3),
        "mergesort": (175.3, 226.9, 197.7),
        "code": (173.1, 197.1, 155.0),
        "math": (161.6, 187.0, 147.0),
        "prose": (113.9, 101.7, 68.5),
    }
    rows = []
    for name, measured in speeds.items():
        pairs = zip(round_s.items(), measured, strict=True)
        tokens = {k: min(speed * time_s, k + 1) for (k, time_s), speed in pairs}
        rows.append(Row(f"v100, {name}", "cuda", machine, _rates(tokens)))
    rows.append(Row("v100, at 0.5k", "cuda", machine, _rates({7: 127.4 * round_s[7]})))
    return [*rows, Row("v100, at 65k", "cuda", machine, _rates({3: 2.55, 7: 2.63}), 65_000)]


def _apple() -> list[Row]:
    chips = {
        "M4 Pro": ("apple, m4", {1: 1.0, 2: 1.03, 4: 1.47, 8: 2.69}),
        "M3 Max": ("apple, m3", {1: 0.129, 2: 0.129, 4: 0.165, 6: 0.263, 8: 0.323}),
        "M3 Ultra": ("apple, ultra", {1: 1.0, 2: 1.83, 4: 3.26, 8: 6.12}),
    }
    texts = {
        "code": (0.91, 0.85, 0.80, 0.76, 0.72),
        "mixed": (0.78, 0.68, 0.60, 0.55),
        "prose": (0.60, 0.45, 0.38, 0.33),
        "unpredictable": (0.08, 0.05),
    }
    rows = []
    for chip, (kind, points) in chips.items():
        for share, head in ((0.02, "short"), (0.06, "full")):
            rest = _through(points)
            machine = CostCurve((1,), (rest,), (share * rest[0],))
            for text, rates in texts.items():
                deep = (*rates, *[rates[-1]] * (MAX_DEPTH - len(rates)))
                rows.append(Row(f"{chip}, {head} head, {text}", kind, machine, deep))
    return rows


ROWS = (*_v100(), *_apple())


def main() -> None:
    """Print what was chosen, row by row."""
    print(f"{'':34}{'best':>5}{'x plain':>9}{'profile':>9}{'shipped':>9}   chosen late")
    for row in ROWS:
        v = verdict(row)
        tuned, shipped = (done.tokens_per_s / v.best for done in (v.tuned, v.shipped))
        ratio = v.best / v.plain
        print(
            f"{row.name:34}{v.best_depth:>5}{ratio:>9.2f}{tuned:>9.3f}{shipped:>9.3f}"
            f"   {v.tuned.usual}, {v.shipped.usual}"
        )
    print("profile, shipped: speed of the policy over that of the best fixed depth")


if __name__ == "__main__":
    main()
