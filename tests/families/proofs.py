"""What is proved of every family: the numbers of an independent reference, and exact decoding."""

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache as remembered
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from mtplx.blas import serving
from mtplx.cache import WindowCache
from mtplx.draft_options import DraftOptions
from mtplx.loading.native_folder import folder_model
from mtplx.models.drafter import HeadDrafter
from mtplx.models.mlx_lm_target import MlxLmTarget
from mtplx.models.native_head import NativeHead
from mtplx.params import SamplingParams
from mtplx.speculation import LayerCache
from mtplx.state import DecodeState
from tests.families.assembled import VOCAB_SIZE, Assembled, Recipe, assemble, write_checkpoint
from tests.greedy import same_greedy
from tests.tiny import HEAD_ALONE, ScriptedDrafter, close, plain, random_prompt, start

BOUND = 2e-5  # of the largest entry, in float32
ROUNDING = 1e-4  # of a state that went through recurrent layers, where sums are not bit-stable
TOKENS = random_prompt(24, vocab_size=VOCAB_SIZE)
PRIMED = 9  # rows that a head holds before the pass that is compared
PROMPT = random_prompt(12, seed=1, vocab_size=VOCAB_SIZE)
SIXTY = SamplingParams(temperature=0.0, max_tokens=60)


@dataclass(frozen=True, slots=True)
class Case:
    """A family's tiny checkpoint, in torch and as it was loaded from the disk.

    reply: sixty tokens after `PROMPT`, decoded plainly. prefills: states by what they hold.
    """

    reference: Assembled
    folder: Path
    target: MlxLmTarget
    head: NativeHead
    reply: list[int]
    prefills: dict[tuple[int, ...], DecodeState] = field(default_factory=dict)

    def prefilled(self, token_ids: Sequence[int]) -> DecodeState:
        """A state that has read exactly these tokens, and so has its head.

        In short passes: latent attention computes long ones by other operations.
        """
        key = tuple(token_ids)
        if key not in self.prefills:
            self.prefills[key] = DecodeState(self.target, HeadDrafter(self.head))
            for end in (*range(8, len(token_ids), 8), len(token_ids)):
                self.prefills[key].begin([*token_ids[:end], 0], drafting=True)
        return self.prefills[key]


def made(recipe: Recipe, folder: Path) -> Case:
    """A checkpoint written and loaded, as a user would load it."""
    reference = assemble(recipe)
    model = folder_model(write_checkpoint(reference, folder))
    assert model.head is not None, model.no_head_reason
    reply = plain(model.target, PROMPT, SIXTY)
    return Case(reference, folder, model.target, model.head.head, reply)


def deviation(found: mx.array, expected: np.ndarray) -> float:
    """The largest difference, as a share of the largest entry."""
    assert found.shape == expected.shape
    return float(np.abs(np.array(found) - expected).max() / np.abs(expected).max())


def trunk_deviation(case: Case) -> float:
    """Of hidden states on either side of the final norm, and of logits."""
    before = case.target.forward(mx.array(TOKENS), case.target.make_cache())
    after = case.target.normalise(before)
    found = (before, after, case.target.logits(after))
    pairs = zip(found, case.reference.trunk_rows(TOKENS), strict=True)
    return max(deviation(array, expected) for array, expected in pairs)


def head_deviation(case: Case, head: NativeHead, *, primed: bool = True) -> float:
    """Of the logits that all modules make, and of those of a step on what the last handed on.

    Each module takes its rows in two passes; without `primed` the first of them is left out.
    """
    before = case.target.forward(mx.array(TOKENS), case.target.make_cache())
    fed = before if head.hidden_stage == "before_norm" else case.target.normalise(before)
    formula = case.reference.recipe.formula
    trunk = case.reference.trunk_rows(TOKENS)[0 if formula.before_norm else 1]
    source, expected_source, worst = fed, trunk, 0.0
    for step in range(len(head.modules) + formula.chained):
        module, tokens = min(step, len(head.modules) - 1), TOKENS[1 + step :]
        expected = case.reference.head_rows(module, tokens, expected_source[: len(tokens)])
        found, recycled = _head_rows(head, module, tokens, source[: len(tokens)], primed=primed)
        worst = max(worst, deviation(found, expected.logits[PRIMED:]))
        if formula.chained:
            source, expected_source = recycled, expected.recycled
    return worst


def _head_rows(
    head: NativeHead, module: int, tokens: list[int], hidden: mx.array, *, primed: bool
) -> tuple[mx.array, mx.array]:
    """Logits of the rows after the first `PRIMED`, and what all rows hand on."""
    cache, whole = head.make_cache()[module], head.make_cache()[module]
    if primed:
        head.run(module, mx.array(tokens[:PRIMED]), hidden[:PRIMED], cache)
    rows = head.run(module, mx.array(tokens[PRIMED:]), hidden[PRIMED:], cache)
    handed_on = head.run(module, mx.array(tokens), hidden, whole).recycled
    return head.logits(module, rows.output), handed_on


Mutant = Callable[[NativeHead], NativeHead]


def _other_family(**changes: Any) -> Mutant:
    return lambda head: replace(head, family=replace(head.family, **changes))


def _other_modules(change: Callable[[Any], None]) -> Mutant:
    def mutant(head: NativeHead) -> NativeHead:
        modules = [copy.copy(module) for module in head.modules]
        for module in modules:
            change(module)
        return replace(head, modules=tuple(modules))

    return mutant


def _exchange_norms(module: Any) -> None:
    module.embedding_norm, module.hidden_norm = module.hidden_norm, module.embedding_norm


def _drop_output_norm(module: Any) -> None:
    module.output_norm = lambda x: x


def _shift_norms(module: Any) -> None:
    for name in ("embedding_norm", "hidden_norm"):
        shifted = copy.copy(module[name])
        shifted.weight = shifted.weight - 1
        module[name] = shifted


def _drop_output(module: Any) -> None:
    del module["output"]


def mutants(head: NativeHead) -> dict[str, Mutant]:
    """Ways in which a head may be wrong that break no shape."""
    family = head.family
    other_stage = {"before_norm": "after_norm", "after_norm": "before_norm"}
    first = "hidden_first" if family.concat == "embedding_first" else "embedding_first"
    found = {
        "concatenation": _other_family(concat=first),
        "hidden stage": _other_family(hidden_stage=other_stage[family.hidden_stage]),
        "exchanged norms": _other_modules(_exchange_norms),
    }
    if family.chained:
        recycled = other_stage[family.recycle_stage]
        found["recycle stage"] = _other_family(recycle_stage=recycled)
    if family.names.output_norm is not None:
        found["no output norm"] = _other_modules(_drop_output_norm)
    if family.names.output is not None:
        found["the trunk's output head"] = _other_modules(_drop_output)
    if family.zero_centred:
        found["missing one"] = _other_modules(_shift_norms)
    return found


def assert_numbers(case: Case) -> None:
    """Trunk and head are the reference's, and no mutant of the head is."""
    assert trunk_deviation(case) <= BOUND
    assert head_deviation(case, case.head) <= BOUND
    for name, mutant in mutants(case.head).items():
        assert head_deviation(case, mutant(case.head)) > 50 * BOUND, name
    assert head_deviation(case, case.head, primed=False) > 50 * BOUND


def assert_text(case: Case, depth: int, draft: DraftOptions = HEAD_ALONE) -> None:
    """Sixty tokens at temperature 0 are plain decoding's, and so is the state after every round.

    The draft is wrong at each of its positions in turn, and once nowhere.
    """
    slips, slipped = itertools.cycle(range(depth + 1)), set[int]()

    def slip_at(position: int) -> int:
        slip = next(slips)
        slipped.add(slip)
        return slip

    drafter = ScriptedDrafter(case.target, PROMPT + case.reply, slip_at, case.head)
    state, emitted = DecodeState(case.target, drafter), list[int]()
    for emission in start(state, PROMPT, SIXTY, depth=depth, draft=draft):
        emitted += emission.token_ids
        assert_fresh(case, state, [*PROMPT, *emitted][:-1])
    assert slipped == set(range(depth + 1))
    assert same_greedy(case.target, PROMPT, emitted, case.reply)


def assert_fresh(case: Case, state: DecodeState, token_ids: Sequence[int]) -> None:
    """Every layer of trunk and head holds what a prefill of exactly these tokens gives."""
    assert state.token_ids == list(token_ids)
    drafter = state.drafter
    assert isinstance(drafter, HeadDrafter)
    assert_same_state(state.cache, case.prefilled(token_ids).cache)
    # Row i of the head was made with token i + 1.
    fresh = case.prefilled(token_ids[: drafter.num_rows + 1]).drafter
    assert isinstance(fresh, HeadDrafter)
    assert fresh.num_rows == drafter.num_rows
    assert_same_state(drafter.cache, fresh.cache)


def assert_same_state(held: Sequence[LayerCache], expected: Sequence[LayerCache]) -> None:
    for one, other in zip(held, expected, strict=True):
        ours, theirs = one.snapshot(whole=True), other.snapshot(whole=True)
        assert ours.numbers == theirs.numbers
        # Of a window, the rows that the next token sees; how many stay behind them is not state.
        seen = one.window - 1 if isinstance(one, WindowCache) else 0
        for a, b in zip(ours.arrays, theirs.arrays, strict=True):
            assert same_array(a[..., -seen:, :], b[..., -seen:, :]) if seen else same_array(a, b)


def same_array(one: mx.array, other: mx.array) -> bool:
    """Equal bit for bit where that can be had, else up to rounding."""
    if is_bit_stable():
        return bool(mx.array_equal(one, other).item())
    return close(one, other, bound=ROUNDING)


@remembered
def is_bit_stable() -> bool:
    """Whether the BLAS under MLX gives a block's rows the bits of single rows."""
    return serving().name == "mlx"
