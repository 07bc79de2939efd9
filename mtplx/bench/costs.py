"""What a round costs before anything is accepted: passes by number of rows, drafts by length."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from mtplx.bench.rows import Spread, spread
from mtplx.loading.load import LoadedModel
from mtplx.params import SamplingParams
from mtplx.rng import draft_uniforms
from mtplx.sampling import History, draw, warp
from mtplx.speculation import DraftInput
from mtplx.state import DecodeState

NUM_REPEATS = 15
NUM_WARM_UPS = 2


@dataclass(frozen=True, slots=True)
class Costs:
    """Milliseconds at one context length.

    verify_ms: per target pass of 1, 2, … rows, with their logits.
    draft_ms: per draft of 1, 2, … tokens; empty where nothing drafts.
    draft_step_ms: what one token more adds to a draft; the whole draft where none is longer than
        one token, None where nothing drafts.
    """

    context: int
    verify_ms: tuple[Spread, ...]
    draft_ms: tuple[Spread, ...]
    draft_step_ms: Spread | None

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "context": self.context,
            "verify_ms": [{"rows": i, **_plain(s)} for i, s in enumerate(self.verify_ms, 1)],
            "draft_ms": [{"tokens": i, **_plain(s)} for i, s in enumerate(self.draft_ms, 1)],
            "draft_step_ms": self.draft_step_ms.median if self.draft_step_ms else None,
        }


def _plain(ms: Spread) -> dict[str, float]:
    return {"ms": ms.median, "ms_p20": ms.p20, "ms_p80": ms.p80}


def measure_costs(
    model: LoadedModel, prompt_ids: Sequence[int], params: SamplingParams, max_depth: int
) -> Costs:
    """Time passes of 1 to max_depth + 1 rows and drafts of 1 to max_depth tokens, in turn.

    prompt_ids: what stands in the caches meanwhile.
    """
    state = model.new_state(list(prompt_ids))
    state.begin(prompt_ids, drafting=max_depth > 0)
    runs = [_pass_of(state, prompt_ids, rows) for rows in range(1, max_depth + 2)]
    if max_depth > 0:
        rows = _rows(state, prompt_ids)
        runs += [_draft_of(state, rows, params, tokens) for tokens in range(1, max_depth + 1)]
    times = _in_turn(runs)
    passes, drafts = times[: max_depth + 1], times[max_depth + 1 :]
    return Costs(
        context=len(prompt_ids),
        verify_ms=tuple(map(spread, passes)),
        draft_ms=tuple(map(spread, drafts)),
        draft_step_ms=_step(drafts) if drafts else None,
    )


def measure_passes(
    model: LoadedModel, prompt_ids: Sequence[int], num_rows: int, num_repeats: int = 5
) -> tuple[Spread, ...]:
    """Milliseconds of target passes of 1 to num_rows rows behind the prompt, in turn."""
    state = model.new_state(list(prompt_ids))
    state.begin(prompt_ids, drafting=False)
    runs = [_pass_of(state, prompt_ids, rows) for rows in range(1, num_rows + 1)]
    return tuple(map(spread, _in_turn(runs, num_repeats)))


def _step(drafts: Sequence[Sequence[float]]) -> Spread:
    """The longest against the shortest draft of the same turn, per token between them."""
    if len(drafts) == 1:
        return spread(drafts[0])
    pairs = zip(drafts[0], drafts[-1], strict=True)
    return spread([(long - short) / (len(drafts) - 1) for short, long in pairs])


def _in_turn(
    runs: Sequence[Callable[[], None]], num_repeats: int = NUM_REPEATS
) -> list[list[float]]:
    """Milliseconds of each run, all of them once per turn, each turn starting with another one."""
    times: list[list[float]] = [[] for _ in runs]
    for turn in range(NUM_WARM_UPS + num_repeats):
        for place in range(len(runs)):
            which = (turn + place) % len(runs)
            started_s = time.perf_counter()
            runs[which]()
            if turn >= NUM_WARM_UPS:
                times[which].append(1000 * (time.perf_counter() - started_s))
    return times


def _pass_of(state: DecodeState, prompt_ids: Sequence[int], num_rows: int) -> Callable[[], None]:
    repeated = list(prompt_ids) * num_rows
    block = mx.array(repeated[-num_rows:], dtype=mx.int32)

    def run() -> None:
        mx.eval(state.forward(block).logits)
        state.keep([])

    return run


def _rows(state: DecodeState, prompt_ids: Sequence[int]) -> DraftInput | None:
    """The committed row before the pending token; None where the prompt is that token alone."""
    rows = state.draft_input(prompt_ids[-1])
    if rows is not None:
        mx.eval(rows.hidden, rows.token_ids)
    return rows


def _draft_of(
    state: DecodeState, rows: DraftInput | None, params: SamplingParams, num_tokens: int
) -> Callable[[], None]:
    drafter = state.drafter
    assert drafter is not None
    assert rows is not None, "chat prompts have more than one token"
    first_row, before = drafter.num_rows, drafter.snapshot()

    def draw_draft(logits: mx.array, step: int) -> tuple[mx.array, mx.array | None]:
        if not params.draws_randomly:
            return mx.argmax(logits, axis=-1).astype(mx.int32), None
        q = warp(logits, params, History([])).probs
        return draw(q, draft_uniforms(0, first_row, step)[None]), q

    def run() -> None:
        mx.eval(drafter.propose(rows, num_tokens, draw_draft).token_ids)
        drafter.restore(before)

    return run
