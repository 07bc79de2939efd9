"""Rounds of measurement: every prompt, every arm, in an order that favours none."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from mtplx.bench.arms import Arm, Case, Sample
from mtplx.params import SamplingParams

WARM_UP_TOKENS = 16

Visited = TypeVar("Visited")
Progress = Callable[[int, int, str], None]
"""(replies done, replies in all, what is being measured)."""


@dataclass(frozen=True, slots=True)
class Record:
    """What one arm took for one prompt in one round."""

    round_index: int
    case: Case
    label: str
    sample: Sample


def visiting_order(arms: Sequence[Visited], visit: int) -> list[Visited]:
    """The arms in the order of a visit.

    Over 2 n visits each of n arms stands twice at each place, and follows each neighbour as often
    as it goes before it: neither drift of the machine nor what an arm leaves behind sides with one.
    """
    shift = (visit // 2) % len(arms)
    order = [*arms[shift:], *arms[:shift]]
    return order[::-1] if visit % 2 else order


def warm_up(arms: Sequence[Arm], cases: Sequence[Case], params: SamplingParams) -> None:
    """Let each arm answer briefly, so that nothing is compiled or started in a measured reply."""
    brief = replace(params, max_tokens=min(WARM_UP_TOKENS, params.max_tokens))
    for case in (min(cases, key=_length), max(cases, key=_length)):
        for arm in arms:
            arm.answer(case, brief)


def _length(case: Case) -> int:
    return len(case.token_ids)


def measure(
    arms: Sequence[Arm],
    cases: Sequence[Case],
    params: SamplingParams,
    num_rounds: int,
    progress: Progress,
) -> list[Record]:
    """A record for every arm, prompt and round, the arms next to each other for each prompt.

    Interrupted by the keyboard, it gives the rounds that are complete, if there are any.
    """
    total = len(arms) * len(cases) * num_rounds
    complete: list[Record] = []
    for round_index in range(num_rounds):
        records: list[Record] = []
        try:
            for place, case in enumerate(cases):
                for arm in visiting_order(arms, round_index + place):
                    what = f"round {round_index + 1} of {num_rounds}: {case.kind}, {arm.label}"
                    progress(len(complete) + len(records), total, what)
                    sample = arm.answer(case, params)
                    records.append(Record(round_index, case, arm.label, sample))
        except KeyboardInterrupt:
            if not complete:
                raise
            return complete
        complete += records
    progress(total, total, "done")
    return complete
