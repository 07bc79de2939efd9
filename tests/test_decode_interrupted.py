"""Decodes that are broken off, fail, or run beside others: what follows is as if they had not."""

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, cast

import mlx.core as mx
import pytest

import mtplx
from mtplx.cache import AttentionCache
from mtplx.decode import Emission
from mtplx.depth import DepthPolicy
from mtplx.errors import UsageError
from mtplx.models.drafter import HeadDrafter
from mtplx.models.head import LlamaHead
from mtplx.models.shortlist import make_shortlist, widen
from mtplx.rounds import NotFiniteError
from mtplx.state import DecodeState
from mtplx.stats import DecodeStats
from tests.tiny import (
    GREEDY,
    ChosenDepth,
    ScriptedDrafter,
    WatchedTarget,
    assert_holds,
    finish,
    head_drafter,
    plain,
    random_prompt,
    start,
    tiny_head,
    tiny_target,
)

TARGET = tiny_target()
PROMPT = random_prompt(7)
REPLY = plain(TARGET, PROMPT)
TURN = [*PROMPT, *REPLY[:6], 9, 8]
SECOND_REPLY = plain(TARGET, TURN)


BY_TURNS = ChosenDepth(lambda context: context % 2 * 3)
DEPTHS = [0, 3, BY_TURNS]


@dataclass(slots=True)
class Trap:
    """Goes off once, at one pass of a target."""

    error: type[BaseException]
    at: int

    def before(self, index: int) -> None:
        if index == self.at:
            raise self.error

    def after(self, index: int, hidden: mx.array) -> mx.array:
        self.before(index)
        return hidden


def watched(slip: int = 1) -> tuple[DecodeState, WatchedTarget, ScriptedDrafter]:
    target = WatchedTarget(TARGET)
    drafter = ScriptedDrafter(TARGET, PROMPT + REPLY, lambda position: slip)
    return DecodeState(target, drafter), target, drafter


def collect(rounds: Iterator[Emission], emitted: list[int]) -> None:
    """Into a list that keeps what came before an error."""
    for emission in rounds:
        emitted += emission.token_ids


def assert_goes_on(state: DecodeState, depth: int | DepthPolicy = 3) -> None:
    """The next turn is what it is from nothing, and so is the state after it."""
    assert isinstance(state.drafter, ScriptedDrafter)
    state.drafter.text = TURN + SECOND_REPLY
    assert finish(start(state, TURN, depth=depth)) == SECOND_REPLY
    assert_holds(state, [*TURN, *SECOND_REPLY[:-1]])


@pytest.mark.parametrize("num_rounds", range(1, 5))
@pytest.mark.parametrize("depth", DEPTHS)
def test_a_decode_can_be_closed_after_any_round(depth: int | DepthPolicy, num_rounds: int) -> None:
    """Also while a round is queued ahead: what was emitted is held, and the next turn is a cold
    one's."""
    state, _, _ = watched()
    rounds = start(state, PROMPT, depth=depth)
    emitted = [token_id for _ in range(num_rounds) for token_id in next(rounds).token_ids]
    rounds.close()
    assert emitted == REPLY[: len(emitted)]
    assert state.token_ids == [*PROMPT, *emitted][:-1]
    assert_goes_on(state)


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("index", range(5))
@pytest.mark.parametrize("depth", DEPTHS)
def test_an_interrupt_within_a_pass_is_survived(
    depth: int | DepthPolicy, index: int, where: str
) -> None:
    """Ctrl-C before the caches moved or after: nothing that was not emitted is held."""
    state, target, _ = watched()
    setattr(target, where, getattr(Trap(KeyboardInterrupt, index), where))
    stats, emitted = DecodeStats(), list[int]()
    with pytest.raises(KeyboardInterrupt):
        collect(start(state, PROMPT, depth=depth, stats=stats), emitted)
    assert emitted == REPLY[: len(emitted)]
    assert stats.num_tokens == len(emitted)
    assert stats.other_s >= 0
    assert_goes_on(state)


@pytest.mark.parametrize("depth", DEPTHS)
def test_an_interrupt_between_rounds_is_survived(depth: int | DepthPolicy) -> None:
    """One that is raised where the caller handles a token ends the decode and nothing else."""
    state, _, _ = watched()
    rounds = start(state, PROMPT, depth=depth)
    next(rounds)
    with pytest.raises(KeyboardInterrupt):
        rounds.throw(KeyboardInterrupt)
    assert_goes_on(state)


def count_lines(run: Callable[[], Any], interrupt_at: int | None = None) -> int:
    """Run with an interrupt raised at the n-th line of this package; how many lines there were."""
    package = str(Path(mtplx.__file__).parent)
    num_lines = 0

    def in_package(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal num_lines
        if event == "line":
            num_lines += 1
            if num_lines == interrupt_at:
                raise KeyboardInterrupt
        return in_package

    def anywhere(frame: FrameType, event: str, argument: object) -> Any:
        return in_package if frame.f_code.co_filename.startswith(package) else None

    before = sys.gettrace()
    sys.settrace(anywhere)
    try:
        run()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return num_lines


@pytest.mark.slow
@pytest.mark.parametrize("depth", DEPTHS)
def test_an_interrupt_at_any_line_is_survived(depth: int | DepthPolicy) -> None:
    """Every 31st line of a second turn, between any two movements: the third is a cold one's."""

    def second_turn(state: DecodeState) -> Callable[[], Any]:
        finish(start(state, [*PROMPT[:3], 1, 2, 3], GREEDY, depth=2))
        return lambda: [*zip(range(3), start(state, PROMPT, depth=depth), strict=False)]

    for at in range(1, count_lines(second_turn(watched()[0])), 31):
        state, _, _ = watched()
        count_lines(second_turn(state), interrupt_at=at)
        assert_goes_on(state)


@pytest.mark.parametrize("index", range(1, 6))
@pytest.mark.parametrize("depth", [None, *DEPTHS])
def test_logits_that_are_not_numbers_are_an_error(
    depth: int | DepthPolicy | None, index: int
) -> None:
    """No token comes of them, those before stay, and nothing of that pass is used again.

    A depth of None is plain decoding without a drafter to be fed.
    """
    state, target, _ = watched()
    drafting, depth = depth is not None, depth or 0

    def spoil(current: int, hidden: mx.array) -> mx.array:
        if current != index:
            return hidden
        for layer in cast("list[AttentionCache]", state.cache):
            assert layer.values is not None
            layer.values[..., layer.offset - hidden.shape[0] : layer.offset, :] = mx.nan
        return hidden * mx.nan

    target.after = spoil
    emitted, stats = list[int](), DecodeStats()
    with pytest.raises(NotFiniteError, match="not finite"):
        collect(start(state, PROMPT, depth=depth, drafting=drafting, stats=stats), emitted)
    assert emitted == REPLY[: len(emitted)]
    assert stats.num_tokens == len(emitted)
    assert stats.other_s >= 0
    assert finish(start(state, TURN, drafting=drafting)) == SECOND_REPLY
    assert_goes_on(state)


def test_two_decodes_can_take_turns() -> None:
    """Rounds of two states of one model, in any order, do not disturb each other."""
    other = random_prompt(9)
    expected = REPLY, plain(TARGET, other)
    for depths in ((0, 0), (0, 3), (3, 2)):
        states = [DecodeState(TARGET, head_drafter(TARGET)) for _ in range(2)]
        rounds = [
            start(state, prompt, depth=depth)
            for state, prompt, depth in zip(states, (PROMPT, other), depths, strict=True)
        ]
        emitted: tuple[list[int], list[int]] = ([], [])
        for turn in range(2 * GREEDY.max_tokens):
            one = turn * 7 % 3 % 2
            emitted[one].extend(next(rounds[one]).token_ids if len(emitted[one]) < 14 else [])
        assert (emitted[0] + finish(rounds[0]), emitted[1] + finish(rounds[1])) == expected
        assert_holds(states[0], [*PROMPT, *REPLY[:-1]])
        assert_holds(states[1], [*other, *expected[1][:-1]])


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_decode_does_not_go_on_in_a_state_that_went_elsewhere(depth: int | DepthPolicy) -> None:
    """It says so, rather than continue the other text; the other text is not disturbed."""
    state, _, drafter = watched()
    first = start(state, PROMPT, depth=depth)
    next(first)
    drafter.text = TURN + SECOND_REPLY
    second = start(state, TURN, depth=depth)
    emitted = next(second).token_ids
    with pytest.raises(UsageError, match="Another request"):
        next(first)
    assert emitted + finish(second) == SECOND_REPLY


@pytest.mark.parametrize("depth", [0, 3])
def test_a_state_can_be_handed_to_another_thread(depth: int) -> None:
    """Arrays of one thread that were not evaluated cannot be used in another: none is left so."""
    some = make_shortlist(TARGET.lm_head, mx.arange(9, dtype=mx.int32))
    wide = HeadDrafter(LlamaHead(TARGET, tiny_head()), widen(some, TARGET.lm_head, PROMPT))
    drafters = [head_drafter(TARGET), head_drafter(TARGET), wide]
    states = [DecodeState(TARGET, drafter) for drafter in drafters]
    finish(start(states[0], PROMPT, depth=2))
    replies: list[list[int]] = []

    def run() -> None:
        try:
            replies.extend(finish(start(state, TURN, depth=depth)) for state in states)
        finally:
            mx.clear_streams()  # a thread that ends without may crash the process at its end

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert replies == [SECOND_REPLY] * 3
