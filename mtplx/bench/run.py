"""One whole measurement: what to do, and what came of it."""

import datetime
from dataclasses import dataclass

from mtplx.bench.arms import OFF, make_arms, make_cases
from mtplx.bench.ceiling import ReadCeiling, read_ceiling, weight_bytes_per_token
from mtplx.bench.costs import Costs, measure_costs
from mtplx.bench.measure import Progress, measure, warm_up
from mtplx.bench.rows import Row, make_rows, spread
from mtplx.errors import UsageError
from mtplx.loading.fingerprint import fingerprint
from mtplx.loading.load import LoadedModel
from mtplx.machine import cpu_time, machine, other_cores
from mtplx.params import SamplingParams
from mtplx.prompts import chosen_prompts
from mtplx.request import AUTO

FIRST_SEED = 1


DEEPEST_OF_AUTO = 3  # drafts whose cost is measured where no deeper one is asked for


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure. num_prompts: of each class. depths: 0 is plain decoding and always there.

    Raises UsageError for a number of rounds below 1.
    """

    depths: tuple[int | str, ...]
    classes: tuple[str, ...]
    params: SamplingParams
    num_rounds: int
    num_prompts: int
    vs_mlx_lm: bool

    def __post_init__(self) -> None:
        if self.num_rounds < 1:
            raise UsageError(f"rounds is {self.num_rounds}, but must be 1 or more.")


@dataclass(frozen=True, slots=True)
class Report:
    """What was measured. num_rounds: complete ones, fewer than planned after an interruption."""

    plan: Plan
    rows: tuple[Row, ...]
    costs: Costs
    ceiling: ReadCeiling
    weight_bytes: int | None  # per token
    machine: dict[str, object]
    num_rounds: int
    other_cores: float | None  # at work for other processes meanwhile

    @property
    def share_of_ceiling(self) -> float | None:
        """Of the read ceiling, what plain decoding's reading of weights reaches."""
        if self.weight_bytes is None:
            return None
        speeds = [row.tokens_per_s.median for row in self.rows if row.arm == OFF]
        return spread(speeds).median * self.weight_bytes / self.ceiling.all_threads

    def to_json(self) -> dict[str, object]:
        """Plain values: "rows", "machine" and "costs"."""
        ceiling = self.ceiling
        return {
            "rows": [row.to_json() for row in self.rows],
            "machine": {
                **self.machine,
                "read_gb_per_s": ceiling.all_threads / 1e9,
                "read_gb_per_s_one_thread": ceiling.one_thread / 1e9,
                "weight_gb_per_token": None
                if self.weight_bytes is None
                else self.weight_bytes / 1e9,
                "share_of_read_ceiling": self.share_of_ceiling,
                "temperature": self.plan.params.temperature,
                "max_tokens": self.plan.params.max_tokens,
                "prompts": self.plan.num_prompts,
                "rounds": self.num_rounds,
                "other_cores": self.other_cores,
            },
            "costs": self.costs.to_json(),
        }


def run(model: LoadedModel, plan: Plan, progress: Progress) -> Report:
    """Measure: the read ceiling, the cost of passes and drafts, then rounds of replies.

    Raises UsageError for a plan that this model cannot follow, before anything is measured.
    """
    prompts = chosen_prompts(plan.classes, plan.num_prompts)
    cases = make_cases(model, prompts, FIRST_SEED)
    arms = make_arms(model, plan.depths, mlx_lm=plan.vs_mlx_lm)
    described = {
        **machine(),
        "model": model.name,
        "fingerprint": fingerprint(model.path),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    num_replies = len(arms) * len(cases) * plan.num_rounds
    progress(0, num_replies, "read ceiling")
    weight_bytes = weight_bytes_per_token(model.target)
    ceiling = read_ceiling(weight_bytes or 0)
    progress(0, num_replies, "warm-up")
    warm_up(arms, cases, plan.params)
    progress(0, num_replies, "cost of passes and drafts")
    longest = max(cases, key=lambda case: len(case.token_ids))
    deepest = max(depth for depth in plan.depths if isinstance(depth, int))
    if AUTO in plan.depths:
        deepest = max(deepest, DEEPEST_OF_AUTO)
    costs = measure_costs(model, longest.token_ids, plan.params, deepest)
    before = cpu_time()
    records = measure(arms, cases, plan.params, plan.num_rounds, progress)
    after = cpu_time()
    rows = make_rows(records, arms, same_tokens_expected=not plan.params.draws_randomly)
    return Report(
        plan=plan,
        rows=tuple(rows),
        costs=costs,
        ceiling=ceiling,
        weight_bytes=weight_bytes,
        machine=described,
        num_rounds=1 + max(record.round_index for record in records),
        other_cores=other_cores(before, after),
    )
