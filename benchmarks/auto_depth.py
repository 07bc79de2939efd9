"""Is the depth that is chosen as good as the best that could have been asked for?

    python -m benchmarks.auto_depth --rounds 5 --prompts 3 --max-tokens 96

One run of the default model, arms side by side for each prompt and in an order that favours none:
plain decoding, the fixed depths, and auto. The texts are chat, code, structured and prose,
each after a short and after a long prompt, and prompts of random tokens that nothing foresees.
Each row has several texts: of a single one, each fixed depth is a try to fit its accidents.
Each prompt is read once, and auto knows of a text nothing when a reply to it begins; what rounds
take it learns once for the process, as in any other.

A ratio is the median over rounds of two speeds in the same round. The best fixed depth of a round
is the one that was fastest in the other rounds: of many depths the fastest by the same replies is
too fast by luck, and no choice made beforehand could keep up with it. Asked for are: auto at 0.97
of the best fixed depth or more in each row, at 0.98 of plain decoding or more in the worst of them,
and faster than every fixed depth over all rows together. The exit code is 1 where that was missed.
Progress and a table go to standard error. The last line of standard output is one JSON object.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING

from mtplx.errors import MtplxError, UsageError
from mtplx.prompts import CLASSES, shipped_prompts

if TYPE_CHECKING:
    from mtplx.bench.arms import Case
    from mtplx.bench.measure import Record
    from mtplx.loading.load import LoadedModel
    from mtplx.state import DecodeState

BEST_SHARE, PLAIN_SHARE = 0.97, 0.98
RANDOM = "random tokens"


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of text, or all of them.

    by_round: tokens per second by arm, of each round.
    """

    kind: str
    context: int
    by_round: dict[str, list[float]]

    @property
    def speeds(self) -> dict[str, float]:
        """Tokens per second by arm, the median over rounds."""
        return {arm: median(speeds) for arm, speeds in self.by_round.items()}

    def auto_over(self, arm: str) -> float:
        """The median of auto's speed over that of an arm in the same round."""
        return median(a / b for a, b in zip(self.by_round["auto"], self.by_round[arm], strict=True))

    def best_in(self, rounds: Sequence[int]) -> str:
        """The fixed depth that was fastest in these rounds, or plain decoding where that was."""
        fixed = [arm for arm in self.by_round if arm != "auto"]
        return max(fixed, key=lambda arm: median(self.by_round[arm][i] for i in rounds))

    @property
    def auto_over_best(self) -> float:
        """The median of auto's speed in a round over that of the arm that others find best."""
        rounds = range(len(self.by_round["auto"]))
        if len(rounds) == 1:
            return self.auto_over(self.best_in(rounds))
        best = [self.best_in([j for j in rounds if j != i]) for i in rounds]
        return median(self.by_round["auto"][i] / self.by_round[best[i]][i] for i in rounds)


def make_cases(model: "LoadedModel", num_prompts: int, long_tokens: int) -> "list[Case]":
    """The prompts, each short and long, and as many of random tokens."""
    from mtplx.bench.arms import make_cases
    from mtplx.prompts import Prompt

    by_class = {kind: [p for p in shipped_prompts() if p.kind == kind] for kind in CLASSES}
    prompts = []
    for kind in CLASSES:
        for prompt in by_class[kind][:num_prompts]:
            behind = [p.text for p in shipped_prompts() if p is not prompt]
            prompts.append(Prompt(f"{kind}, short", prompt.text))
            text = _lengthened(model, behind, prompt.text, long_tokens)
            prompts.append(Prompt(f"{kind}, long", text))
    prompts += [Prompt(RANDOM, _random_text(model, seed)) for seed in range(num_prompts)]
    return list(make_cases(model, tuple(prompts), 1))


def _lengthened(model: "LoadedModel", texts: Sequence[str], question: str, num_tokens: int) -> str:
    """The question behind notes of about so many tokens, that have nothing to do with it."""
    notes: list[str] = []
    length, index = 0, 0
    while length < num_tokens:
        notes.append(f"{index + 1}. {texts[index % len(texts)]}")
        length += len(model.tokenizer.encode(notes[-1], parse_special=False))
        index += 1
    return "These are earlier questions.\n\n" + "\n\n".join(notes) + f"\n\nNow: {question}"


def _random_text(model: "LoadedModel", seed: int) -> str:
    import numpy as np

    ids = np.random.default_rng([11, seed]).integers(300, model.target.vocab_size, 64)
    return model.tokenizer.decode([int(i) for i in ids])


def make_rows(records: "Sequence[Record]") -> list[Row]:
    """A row for each kind of text, and at last one for all."""
    kinds = list(dict.fromkeys(record.case.kind for record in records))
    rows = [_row(kind, [r for r in records if r.case.kind == kind]) for kind in kinds]
    return [*rows, _row("all", records)]


def _row(kind: str, records: "Sequence[Record]") -> Row:
    labels = list(dict.fromkeys(record.label for record in records))
    rounds = sorted({record.round_index for record in records})
    speeds = {label: [_speed(records, label, index) for index in rounds] for label in labels}
    return Row(kind, max(len(record.case.token_ids) for record in records), speeds)


def _speed(records: "Sequence[Record]", label: str, round_index: int) -> float:
    own = [r.sample for r in records if r.label == label and r.round_index == round_index]
    return sum(len(sample.token_ids) for sample in own) / sum(sample.decode_s for sample in own)


def missed(rows: Sequence[Row]) -> list[str]:
    """What was asked for and not reached, in words."""
    *kinds, whole = rows
    found = [
        f"{row.kind}: auto at {row.auto_over_best:.3f} of the best fixed depth"
        for row in kinds
        if row.auto_over_best < BEST_SHARE
    ]
    worst = min(kinds, key=lambda row: row.auto_over("off"))
    if worst.auto_over("off") < PLAIN_SHARE:
        found.append(f"{worst.kind}: auto at {worst.auto_over('off'):.3f} of plain decoding")
    return found + [
        f"all: auto at {whole.auto_over(arm):.3f} of {arm}"
        for arm in whole.by_round
        if arm != "auto" and whole.auto_over(arm) <= 1
    ]


def table(rows: Sequence[Row]) -> str:
    """Speeds by arm, and auto's against the best fixed one and against plain decoding."""
    arms = list(rows[0].by_round)
    lines = [f"{'':20}{'tokens':>7}" + "".join(f"{arm:>8}" for arm in arms) + "  /best  /plain"]
    for row in rows:
        speeds = "".join(f"{row.speeds[arm]:>8.1f}" for arm in arms)
        ratios = f"{row.auto_over_best:>7.3f}{row.auto_over('off'):>8.3f}"
        lines.append(f"{row.kind:20}{row.context:>7}{speeds}{ratios}")
    return "\n".join(lines)


def run(given: argparse.Namespace) -> int:
    """Measure, tell, and give the exit code."""
    from mtplx.bench.arms import make_arms, parse_depths
    from mtplx.bench.measure import measure, warm_up
    from mtplx.loading.load import load
    from mtplx.machine import busy_cores, cpu_time, machine, other_cores
    from mtplx.params import SamplingParams

    model = load(given.model)
    params = SamplingParams(temperature=given.temperature, max_tokens=given.max_tokens)
    cases = make_cases(model, given.prompts, given.long)
    cases = [case for case in cases if case.kind.startswith(tuple(given.only.split(";")))]
    if not cases:
        raise UsageError(f"--only {given.only}: no row's name begins so.")
    depths = parse_depths(given.depths + ",auto")
    arms = make_arms(model, depths, mlx_lm=False, state_of=_state_of(model))
    _say(
        f"{len(cases)} prompts, {len(arms)} arms, {given.rounds} rounds; {busy_cores()} busy cores"
    )
    warm_up(arms, cases, params)
    before, started_s = cpu_time(), time.monotonic()
    records = measure(arms, cases, params, given.rounds, _progress)
    rows = make_rows(records)
    _say(table(rows))
    faults = missed(rows)
    _say("\n".join(f"missed: {fault}" for fault in faults) or "all was reached")
    told = {
        "rows": [{**asdict(row), "auto_over_best": row.auto_over_best} for row in rows],
        "missed": faults,
        "machine": {**machine(), "model": model.name},
        "temperature": given.temperature,
        "max_tokens": given.max_tokens,
        "rounds": given.rounds,
        "other_cores": other_cores(before, cpu_time()),
        "taken_s": time.monotonic() - started_s,
    }
    print(json.dumps(told))
    return 1 if faults else 0


def _state_of(model: "LoadedModel") -> "Callable[[Case], DecodeState]":
    """For each prompt one state, which still holds what was read of it, and nothing learnt."""
    states: dict[Case, DecodeState] = {}

    def state_of(case: "Case") -> "DecodeState":
        if case not in states:
            states[case] = model.new_state(list(case.token_ids))
        states[case].policy = None
        return states[case]

    return state_of


def _progress(done: int, total: int, what: str) -> None:
    if done % 50 == 0:
        _say(f"{done}/{total} {what}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=3, help="of each class")
    parser.add_argument("--depths", default="1,2,3,4,5,6,7", help="fixed ones")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--long", type=int, default=1500, help="tokens before a long question")
    parser.add_argument("--only", default="", help="rows whose names begin so: chat, short;random")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--blas", default="auto", help="as for mtplx --blas")
    given = parser.parse_args()
    try:
        if min(given.rounds, given.prompts, given.max_tokens, given.long) < 1:
            raise UsageError("--rounds, --prompts, --max-tokens and --long have to be 1 or more.")
        from mtplx.blas import preload

        preload(given.blas)  # has to come before MLX
        return run(given)
    except MtplxError as error:
        _say(f"Error: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
