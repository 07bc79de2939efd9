"""How many drafted tokens does each law accept, and does the online choice of the mode pay?

    python -m benchmarks.accepted_tokens --prompts 4 --max-tokens 96

One run: the default model writes with block verification and drafts as it does by default (without
lookup and without an early stop, so that only the mode differs). Before each of its rounds the head
also drafts in every fixed mode from the very same state, and the target looks at those drafts too.
So all figures of a row are of the same rounds, and no difference between them is that of texts.

A draft's figure is not whether it happened to be accepted but how many of its tokens each law
expects to accept, by the closed forms of docs/exactness.md: sums over its prefixes of the product
of min(1, p / q) for rejection, of the carried weight for block, of the probability that the same
noise chooses the token from p and q over q for coupled, and of the product of p for a greedy draft.

Progress goes to standard error. The last line of standard output is one JSON object; the exit code
is 1 where block falls behind rejection, or the online mode by more than 2 % behind the best fixed
one.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mtplx.errors import MtplxError, UsageError
from mtplx.prompts import Prompt, chosen_prompts

if TYPE_CHECKING:
    from mtplx.loading.load import LoadedModel

LAWS = ("rejection", "block", "coupled", "greedy")
MODES = {"sampled": "block", "greedy": "greedy"}  # what may be fixed, and its figure under block
TOLERANCE = 0.02


@dataclass(slots=True)
class Row:
    """What one class of prompts at one temperature showed, summed over rounds.

    expected: accepted tokens by law. online: those of the mode that was chosen, round by round.
    accepted: those that the run itself accepted.
    """

    temperature: float
    kind: str
    rounds: int = 0
    expected: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LAWS, 0.0))
    online: float = 0.0
    accepted: int = 0
    modes: dict[str, int] = field(default_factory=dict)

    def per_round(self, total: float) -> float:
        return total / self.rounds if self.rounds else 0.0

    @property
    def best_fixed(self) -> float:
        return max(self.per_round(self.expected[law]) for law in MODES.values())

    @property
    def online_share(self) -> float:
        """Of the tokens of a round of the best fixed mode, those of the online one."""
        return (1 + self.per_round(self.online)) / (1 + self.best_fixed)

    @property
    def falls_short(self) -> bool:
        behind = self.expected["block"] < self.expected["rejection"]
        return behind or self.online_share < 1 - TOLERANCE


def measure(model: "LoadedModel", prompts: Sequence[Prompt], row: Row, given: "Given") -> None:
    """Write a reply to each prompt, and add what was seen to the row."""
    from benchmarks.fixed_drafts import Watch
    from mtplx.decode import decode
    from mtplx.depth import fixed_depth
    from mtplx.draft_options import DraftOptions
    from mtplx.params import SamplingParams
    from mtplx.request import encode_prompt
    from mtplx.stats import DecodeStats

    params = SamplingParams(temperature=row.temperature, max_tokens=given.max_tokens)
    for seed, prompt in enumerate(prompts):
        ids, stats = encode_prompt(model.tokenizer, prompt.text), DecodeStats()
        state = model.new_state(ids)
        assert state.drafter is not None
        watch = Watch(state.drafter, state, params, seed, given.depth, tuple(MODES))
        state.drafter, drafted = watch, dict[str, int]()
        for emission in decode(
            state,
            ids,
            params,
            seed=seed,
            depth=fixed_depth(given.depth),
            drafting=True,
            stop_ids=model.tokenizer.stop_ids,
            stats=stats,
            draft=DraftOptions(lookup=False, stop=0.0),
        ):
            counts = {name: source.drafted for name, source in stats.sources.items()}
            mode = next((n for n, c in counts.items() if c > drafted.get(n, 0)), None)
            drafted = counts
            if mode is not None:
                _add(row, watch.seen[-1], mode, len(emission.token_ids) - 1)


def _add(row: Row, seen: dict[str, float], mode: str, accepted: int) -> None:
    row.rounds += 1
    for law, value in seen.items():
        row.expected[law] += value
    row.online += seen[MODES[mode]]
    row.accepted += accepted
    row.modes[mode] = row.modes.get(mode, 0) + 1


@dataclass(frozen=True, slots=True)
class Given:
    """What the command line asks for."""

    model: str
    head: str | None
    temperatures: tuple[float, ...]
    kinds: tuple[str, ...]
    num_prompts: int
    max_tokens: int
    depth: int


def table(rows: Sequence[Row]) -> str:
    """Accepted drafted tokens per round, a line for each class and temperature."""
    heads = (*LAWS, "online", "best fixed", "share", "in the run")
    lines = [f"{'T':>4} {'class':<11} {'rounds':>6}" + "".join(f"{h:>11}" for h in heads)]
    for row in rows:
        figures = [row.per_round(row.expected[law]) for law in LAWS]
        figures += [row.per_round(row.online), row.best_fixed, row.online_share]
        figures.append(row.per_round(row.accepted))
        cells = "".join(f"{figure:11.3f}" for figure in figures)
        lines.append(f"{row.temperature:4.1f} {row.kind:<11} {row.rounds:6}{cells}")
    return "\n".join(lines)


def summary(rows: Sequence[Row], given: Given, blas: str, seconds: float) -> dict[str, object]:
    """The line of JSON."""
    from importlib.metadata import version

    return {
        "rows": [
            {
                "temperature": row.temperature,
                "class": row.kind,
                "rounds": row.rounds,
                **{law: round(row.per_round(row.expected[law]), 4) for law in LAWS},
                "online": round(row.per_round(row.online), 4),
                "online_share": round(row.online_share, 4),
                "accepted_in_the_run": round(row.per_round(row.accepted), 4),
                "rounds_by_mode": row.modes,
            }
            for row in rows
        ],
        "falls_short": [f"{r.kind} at {r.temperature}" for r in rows if r.falls_short],
        "depth": given.depth,
        "max_tokens": given.max_tokens,
        "prompts_per_class": given.num_prompts,
        "model": given.model,
        "blas": blas,
        "mlx": version("mlx"),
        "seconds": round(seconds, 1),
    }


def parse(arguments: Sequence[str]) -> Given:
    """What a command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accepted_tokens", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--head", help="the MTP head, in place of the one found")
    parser.add_argument("--temps", default="1,0.7")
    parser.add_argument("--classes", default="chat,code,prose")
    parser.add_argument("--prompts", type=int, default=4, help="of each class")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--depth", type=int, default=3)
    given = parser.parse_args(arguments)
    try:
        temperatures = tuple(float(word) for word in given.temps.split(","))
    except ValueError:
        temperatures = ()
    if not temperatures or not all(t > 0 for t in temperatures):
        raise UsageError(f"--temps is {given.temps!r}, but must be numbers above 0 such as 1,0.7.")
    for name, value in (("--max-tokens", given.max_tokens), ("--depth", given.depth)):
        if value < 1:
            raise UsageError(f"{name} is {value}, but must be 1 or more.")
    kinds = tuple(word.strip() for word in given.classes.split(","))
    chosen_prompts(kinds, given.prompts)
    return Given(
        *(given.model, given.head, temperatures, kinds),
        *(given.prompts, given.max_tokens, given.depth),
    )


def run(given: Given) -> tuple[list[Row], str]:
    """Every row, with a line of progress for each, and the BLAS that served."""
    from mtplx.blas import preload

    blas = preload()
    from mtplx.loading.load import load

    model = load(given.model, head=given.head)
    if not model.can_draft:
        raise UsageError(f"There is nothing to measure: {model.no_head_reason}")
    rows = []
    for temperature in given.temperatures:
        for kind in given.kinds:
            row = Row(temperature, kind)
            measure(model, chosen_prompts((kind,), given.num_prompts), row, given)
            rows.append(row)
            print(f"T {temperature:g}, {kind}: {row.rounds} rounds", file=sys.stderr, flush=True)
    return rows, blas.name


def main(arguments: Sequence[str]) -> int:
    """Measure, print the table and the line of JSON, and give the exit code."""
    started_s = time.perf_counter()
    try:
        given = parse(arguments)
        rows, blas = run(given)
    except MtplxError as error:
        print(f"accepted_tokens: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    print("Accepted drafted tokens per round (a round gives one token more).\n")
    print(table(rows), end="\n\n")
    result = summary(rows, given, blas, time.perf_counter() - started_s)
    print(json.dumps(result), flush=True)
    return 1 if result["falls_short"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
