"""Conversations with models whose layers do not keep every length: what is read again, and that
nothing else differs from a cold start."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from unittest.mock import patch

import mlx.core as mx
import pytest

from mtplx.chat.memory import cache_bytes_per_token
from mtplx.checkpoints import BEFORE_END, MAX_CHECKPOINTS, Checkpoint, Checkpoints
from mtplx.rounds import NotFiniteError
from mtplx.speculation import Snapshot
from mtplx.state import DecodeState
from mtplx.stats import DecodeStats
from tests.greedy import same_greedy
from tests.test_decode_interrupted import count_lines
from tests.tiny import GREEDY, WatchedTarget, finish, plain, random_prompt, start
from tests.undo.targets import assert_holds, drafter_of, state_of, target_of
from tests.undo.tiny_models import VOCAB_SIZE, WINDOW

NAMES = ["qwen3_5", "llama"]  # recurrent layers, and windows
FIRST = random_prompt(60, vocab_size=VOCAB_SIZE)
MESSAGES = [random_prompt(11 + i, seed=7, vocab_size=VOCAB_SIZE) for i in range(4)]
NEXT = [3, 1, 4]
OPENING = [5, 6, 7]  # what a template writes at the end of a prompt, before the reply

Render = Callable[[list[int], list[int]], list[int]]
"""(the last prompt, the reply) -> how the next prompt begins"""


def as_it_was(prompt: list[int], reply: list[int]) -> list[int]:
    return prompt + reply


def without_thoughts(prompt: list[int], reply: list[int]) -> list[int]:
    """The opening goes, and of the reply only the second half stays."""
    return [*prompt[: -len(OPENING)], 9, *reply[len(reply) // 2 :]]


def turn(state: DecodeState, prompt: list[int], *, depth: int = 3) -> tuple[list[int], int]:
    """The reply to a prompt, and how many tokens of it were read for that."""
    stats = DecodeStats()
    reply = finish(start(state, prompt, depth=depth, drafting=depth > 0, stats=stats))
    return reply, len(prompt) - stats.num_reused_tokens


@pytest.mark.parametrize("render", [as_it_was, without_thoughts])
@pytest.mark.parametrize("name", NAMES)
def test_a_turn_reads_the_new_message_and_the_reply(name: str, render: Render) -> None:
    """And little before them, also where the template writes the reply otherwise than it was."""
    state, prompt = state_of(name), FIRST + OPENING
    for message in MESSAGES:
        reply, _ = turn(state, prompt)
        assert same_greedy(state.target, prompt, reply, plain(state.target, prompt))
        assert_holds(state, [*prompt, *reply[:-1]])
        prompt = [*render(prompt, reply), *message, *OPENING]
        _, num_read = turn(state_clone(state), prompt)
        assert num_read <= len(reply) + len(message) + len(OPENING) + 1 + BEFORE_END


def state_clone(state: DecodeState) -> DecodeState:
    """Another state that stands where this one does."""
    assert state.drafter is not None
    other = state_of(state.target.model.model_type)  # type: ignore[attr-defined]
    other.adopt(list(state.token_ids), state.checkpoint(whole=True), state.checkpoints)
    return other


@pytest.mark.parametrize("name", NAMES)
def test_replies_to_one_prompt_read_it_once(name: str) -> None:
    """A second sample finds the end of the prompt."""
    state = state_of(name)
    replies = [turn(state, FIRST) for _ in range(3)]
    assert [num_read for _, num_read in replies] == [len(FIRST), 1, 1]
    assert replies[0][0] == replies[1][0] == replies[2][0]


@pytest.mark.parametrize("depths", [(0, 3, 0, 2), (3, 0, 0, 3)])
@pytest.mark.parametrize("name", NAMES)
def test_drafting_can_be_off_for_a_turn(name: str, depths: Sequence[int]) -> None:
    """The head's state has no hole, whichever turns went without it."""
    state, prompt = state_of(name), FIRST
    for depth, message in zip(depths, MESSAGES, strict=True):
        reply, _ = turn(state, prompt, depth=depth)
        assert same_greedy(state.target, prompt, reply, plain(state.target, prompt))
        assert_holds(state, [*prompt, *reply[:-1]])
        prompt = prompt + reply + message


@pytest.mark.parametrize("num_shared", [0, 1, 20, 40, 59])
@pytest.mark.parametrize("name", NAMES)
def test_another_conversation_begins_where_it_branches_off(name: str, num_shared: int) -> None:
    """Or at the last place before that every layer can go back to; never behind it."""
    state = state_of(name)
    turn(state, FIRST)
    prompt = [*FIRST[:num_shared], (FIRST[num_shared] + 1) % VOCAB_SIZE, 3, 4]
    reply, num_read = turn(state, prompt)
    assert num_read >= len(prompt) - num_shared
    assert same_greedy(state.target, prompt, reply, plain(state.target, prompt))
    assert_holds(state, [*prompt, *reply[:-1]])


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_does_not_outlive_its_text(name: str) -> None:
    """Where a conversation went elsewhere, and its place is now of another text."""
    state, other = state_of(name), FIRST[:30] + [t for message in MESSAGES for t in message]
    for prompt in (FIRST, other, [*other[:62], 1, 2, 3]):
        reply, _ = turn(state, prompt)
        assert_holds(state, [*prompt, *reply[:-1]])


def test_a_window_goes_back_a_little_without_a_checkpoint() -> None:
    """Some rows behind it are still there."""
    state = state_of("llama")
    turn(state, FIRST)
    state.checkpoints = Checkpoints()
    _, num_read = turn(state, [*FIRST[:50], 1, 2, 3], depth=0)
    assert num_read == 3
    assert WINDOW < 50


def test_checkpoints_are_bounded_in_number_and_bytes() -> None:
    """The longest stay; the newest does, whatever it takes."""
    held = Checkpoints(max_count=3, max_bytes=100)

    def checkpoint(length: int, num_bytes: int) -> Checkpoint:
        return Checkpoint(length, (Snapshot((length,), (mx.zeros(num_bytes, mx.uint8),)),))

    for length in (5, 1, 9, 7):
        held.add(checkpoint(length, 10))
    assert [c.length for c in held] == [5, 7, 9]
    held.add(checkpoint(8, 85))
    assert [c.length for c in held] == [8, 9]
    held.add(checkpoint(10, 101))
    assert [c.length for c in held] == [10]
    assert held.num_bytes == 101


@pytest.mark.parametrize("name", NAMES)
def test_a_long_conversation_holds_a_bounded_number_of_checkpoints(name: str) -> None:
    """Twelve turns; what the state holds counts them."""
    state, prompt = state_of(name), FIRST
    for _ in range(12):
        state.begin(prompt, drafting=True)
        prompt = [*prompt, *MESSAGES[0]]
    lengths = [checkpoint.length for checkpoint in state.checkpoints]
    assert len(lengths) == len(set(lengths)) == MAX_CHECKPOINTS
    layers = sum(layer.num_bytes for layer in state.cache)
    assert state.drafter is not None
    assert state.num_bytes == layers + state.drafter.num_bytes + state.checkpoints.num_bytes


@pytest.mark.parametrize(("name", "num_growing"), [("qwen3_5", 1), ("llama", 2)])
def test_a_token_more_takes_memory_in_attention_layers_alone(name: str, num_growing: int) -> None:
    """Windows and recurrent state do not grow with the text."""
    keys_and_values, heads, width, float32 = 2, 2, 8, 4
    expected = num_growing * keys_and_values * heads * width * float32
    assert cache_bytes_per_token(target_of(name)) == expected


def test_attention_alone_takes_no_checkpoints() -> None:
    """Nothing is marked, and no pass over a prompt is split for it."""
    from tests.tiny import head_drafter, tiny_target

    state = DecodeState(tiny_target(), head_drafter(tiny_target()))
    state.begin(FIRST, drafting=True)
    assert list(state.checkpoints) == []


@pytest.mark.parametrize("index", range(4))
@pytest.mark.parametrize("name", NAMES)
def test_an_interrupt_while_going_back_is_survived(name: str, index: int) -> None:
    """Whichever layer has gone back and whichever not, the next prompt gets the right state."""
    state = state_of(name)
    turn(state, FIRST)
    layer = state.cache[index]
    for method in ("restore", "rewind"):
        broken = patch.object(layer, method, side_effect=KeyboardInterrupt)
        with broken, suppress(KeyboardInterrupt):
            state.begin([*FIRST[:40], 1, 2], drafting=True)
        state.begin([*FIRST, 1], drafting=True)
        assert_holds(state, FIRST)


@pytest.mark.parametrize("index", [2, 4])
@pytest.mark.parametrize("depth", [0, 3])
@pytest.mark.parametrize("name", NAMES)
def test_logits_that_are_not_numbers_leave_a_usable_state(
    name: str, depth: int, index: int
) -> None:
    """In the first round or a later one: the next turn is a cold one's."""
    watched = WatchedTarget(target_of(name))  # type: ignore[arg-type]  # all that it asks is there
    state = DecodeState(watched, drafter_of(target_of(name)))

    def spoil(current: int, hidden: mx.array) -> mx.array:
        return hidden * mx.nan if current == index else hidden

    watched.after = spoil
    with pytest.raises(NotFiniteError):
        turn(state, FIRST, depth=depth)
    watched.after = lambda current, hidden: hidden
    prompt = [*FIRST, *NEXT]
    reply, _ = turn(state, prompt)
    assert same_greedy(state.target, prompt, reply, plain(target_of(name), prompt))
    assert_holds(state, [*prompt, *reply[:-1]])


@pytest.mark.slow
@pytest.mark.parametrize("depth", [0, 3])
@pytest.mark.parametrize("name", NAMES)
def test_an_interrupt_at_any_line_is_survived(name: str, depth: int) -> None:
    """Every 199th line of a second turn, between any two movements: the third is a cold one's."""
    third = [*FIRST[:50], 1, 2, 3]
    expected = plain(target_of(name), third, GREEDY)

    def second_turn(state: DecodeState) -> Callable[[], object]:
        turn(state, FIRST[:45], depth=2)
        return lambda: [*zip(range(3), start(state, FIRST, depth=depth), strict=False)]

    for at in range(1, count_lines(second_turn(state_of(name))), 199):
        state = state_of(name)
        count_lines(second_turn(state), interrupt_at=at)
        reply, _ = turn(state, third)
        assert same_greedy(state.target, third, reply, expected)
        assert_holds(state, [*third, *reply[:-1]])
