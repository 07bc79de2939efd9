from dataclasses import replace
from unittest.mock import patch

import mlx.core as mx
import pytest

from mtplx.models.drafter import HeadDrafter
from mtplx.models.head import LlamaHead
from mtplx.speculation import HiddenStage
from mtplx.state import MAX_UNSEEN_ROWS, PREFILL_ROWS, DecodeState
from tests.tiny import (
    WatchedTarget,
    assert_holds,
    head_drafter,
    poison,
    random_prompt,
    same,
    tiny_head,
    tiny_target,
)

TARGET = tiny_target()
TEXT = random_prompt(40)


def drafting_state() -> tuple[DecodeState, HeadDrafter]:
    drafter = head_drafter(TARGET)
    return DecodeState(TARGET, drafter), drafter


def watched_state() -> tuple[DecodeState, list[int]]:
    """A state with a drafter, and the lengths of the passes that its target makes."""
    lengths: list[int] = []

    def note(index: int, hidden: mx.array) -> mx.array:
        lengths.append(hidden.shape[0])
        return hidden

    return DecodeState(WatchedTarget(TARGET, after=note), head_drafter(TARGET)), lengths


def step(state: DecodeState, block: list[int], num_kept: int) -> None:
    """A round that keeps the first tokens of a block."""
    state.forward(mx.array(block))
    state.keep(block[:num_kept])


@pytest.mark.parametrize(
    "length", [1, 2, PREFILL_ROWS, PREFILL_ROWS + 1, PREFILL_ROWS + 2, 2 * PREFILL_ROWS + 2]
)
def test_a_prompt_is_held_but_for_its_last_token(length: int) -> None:
    """However many passes it takes, the caches are those of one pass, the head's as well."""
    prompt = random_prompt(length)
    state, lengths = watched_state()
    assert state.begin(prompt, drafting=True) == 0
    assert sum(lengths) == length - 1
    assert max(lengths, default=0) <= PREFILL_ROWS
    assert_holds(state, prompt[:-1])
    assert state.drafter is not None
    assert state.drafter.num_rows == max(0, length - 2)
    whole = TARGET.make_cache()
    if length > 1:
        TARGET.forward(mx.array(prompt[:-1]), whole)
    for held, expected in zip(state.cache, whole, strict=True):
        for a, b in zip(held.state, expected.state, strict=True):
            assert same(a[..., : length - 1, :], b[..., : length - 1, :])


@pytest.mark.parametrize("drafting", [False, True])
@pytest.mark.parametrize("num_shared", [0, 1, 2, 20, 29, 30])
def test_a_second_prompt_passes_only_what_is_new(num_shared: int, drafting: bool) -> None:
    """What both prompts begin with stays; a drafter needs one row again, for its hidden state."""
    state, lengths = watched_state()
    state.begin(TEXT[:31], drafting=drafting)
    lengths.clear()
    prompt = [*TEXT[:num_shared], (TEXT[num_shared] + 1) % 64, 5, 6]
    kept = state.begin(prompt, drafting=drafting)
    assert kept == (max(0, num_shared - 1) if drafting else num_shared)
    assert sum(lengths) == len(prompt) - 1 - kept
    assert_holds(state, prompt[:-1])


@pytest.mark.parametrize("length", [1, 2, 17, 31])
def test_a_prompt_that_was_seen_already_leaves_its_last_token_pending(length: int) -> None:
    """The start of an earlier prompt, or all of it, is held but for its last token."""
    state, _ = drafting_state()
    state.begin(TEXT[:31], drafting=True)
    state.begin(TEXT[:length], drafting=True)
    assert_holds(state, TEXT[: length - 1])


@pytest.mark.parametrize("num_kept", range(7))
def test_a_round_keeps_what_it_says_and_nothing_else(num_kept: int) -> None:
    """A block of 6, any number of it kept: the caches are those of the committed tokens."""
    state, drafter = drafting_state()
    state.begin(TEXT[:11], drafting=True)
    step(state, TEXT[10:16], num_kept)
    poison(state.cache)
    poison(drafter.cache)
    assert_holds(state, TEXT[: 10 + num_kept])
    step(state, TEXT[10 + num_kept : 14 + num_kept], 4)
    assert_holds(state, TEXT[: 14 + num_kept])


def test_keeping_nothing_undoes_a_pass() -> None:
    """A pass that was queued ahead in vain leaves the state as it was, rows for the head too."""
    state, _ = drafting_state()
    state.begin(TEXT[:11], drafting=True)
    state.forward(mx.array([63]))
    state.keep([])
    rows = state.draft_input(TEXT[10])
    assert rows is not None
    assert rows.token_ids.tolist() == TEXT[10:11]
    assert_holds(state, TEXT[:10])


@pytest.mark.parametrize("num_plain", [1, 3, MAX_UNSEEN_ROWS + 5, 3 * MAX_UNSEEN_ROWS])
def test_the_drafter_is_given_every_committed_row_once(num_plain: int) -> None:
    """After rounds without drafting it gets, in order, all rows that it lacks and their tokens."""
    text = random_prompt(12 + num_plain)
    state, drafter = drafting_state()
    state.begin(text[:11], drafting=True)
    for i in range(num_plain):
        step(state, text[10 + i : 11 + i], 1)
        assert len(state.token_ids) - drafter.num_rows <= MAX_UNSEEN_ROWS + 1
    start = drafter.num_rows
    rows = state.draft_input(text[10 + num_plain])
    assert rows is not None
    assert rows.token_ids.tolist() == text[start + 1 : 11 + num_plain]
    hidden = TARGET.normalise(TARGET.forward(mx.array(text[: 10 + num_plain]), TARGET.make_cache()))
    assert same(rows.hidden, hidden[start:])
    drafter.observe(rows)
    step(state, text[10 + num_plain : 11 + num_plain], 1)
    assert_holds(state, text[: 11 + num_plain])


@pytest.mark.parametrize("stage", ["before_norm", "after_norm"])
def test_the_drafter_is_given_the_hidden_states_that_it_asks_for(stage: HiddenStage) -> None:
    """From either side of the final norm, out of prefill passes and out of rounds."""
    state, drafter = drafting_state()
    assert isinstance(drafter.head, LlamaHead)
    drafter.head = replace(drafter.head, hidden_stage=stage)
    given: list[mx.array] = []
    with patch.object(drafter, "observe", side_effect=lambda rows: given.append(rows.hidden)):
        state.begin(TEXT[:11], drafting=True)
    step(state, TEXT[10:14], 3)
    rows = state.draft_input(TEXT[13])
    assert rows is not None
    hidden = TARGET.forward(mx.array(TEXT[:13]), TARGET.make_cache())
    expected = hidden if stage == "before_norm" else TARGET.normalise(hidden)
    assert same(given[0], expected[:9])
    assert same(rows.hidden, expected[9:])


def test_there_is_nothing_to_draft_from_before_the_first_row() -> None:
    """A prompt of one token has no hidden state yet; after a round it has one."""
    state, _ = drafting_state()
    state.begin(TEXT[:1], drafting=True)
    assert state.draft_input(TEXT[0]) is None
    step(state, TEXT[:1], 1)
    rows = state.draft_input(TEXT[1])
    assert rows is not None
    assert rows.token_ids.tolist() == TEXT[1:2]
    assert rows.hidden.shape == (1, TARGET.dims.hidden_size)


@pytest.mark.parametrize("turns", [(True, False, True), (False, True), (False, False, True, True)])
def test_drafting_can_be_off_for_a_turn(turns: tuple[bool, ...]) -> None:
    """The head's state has no holes, whichever turns went without it."""
    state, drafter = drafting_state()
    for i, drafting in enumerate(turns):
        length = 6 + 5 * i
        state.begin(TEXT[:length], drafting=drafting)
        assert (state.draft_input(TEXT[length - 1]) is not None) == drafting
        step(state, TEXT[length - 1 : length + 2], 2)
        assert_holds(state, TEXT[: length + 1])
    state.begin(TEXT[:30], drafting=True)
    assert drafter.num_rows == 28
    assert_holds(state, TEXT[:29])


def test_a_state_without_a_drafter_never_has_anything_for_it() -> None:
    """Asking for drafting where there is no head is plain decoding."""
    state = DecodeState(TARGET)
    state.begin(TEXT[:11], drafting=True)
    step(state, TEXT[10:13], 3)
    assert state.draft_input(TEXT[13]) is None
    assert_holds(state, TEXT[:13])


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("interrupted", range(3))
def test_an_interrupted_prefill_leaves_a_usable_state(interrupted: int, when: str) -> None:
    """Whichever pass it hits, the next prompt finds what was committed, and only that."""
    prompt = random_prompt(2 * PREFILL_ROWS + 30)
    target = WatchedTarget(TARGET)
    state = DecodeState(target, head_drafter(TARGET))

    def interrupt(index: int, hidden: mx.array | None = None) -> mx.array:
        if index == interrupted:
            raise KeyboardInterrupt
        return mx.array(0) if hidden is None else hidden

    if when == "after":
        target.after = interrupt
    else:
        target.before = interrupt  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        state.begin(prompt, drafting=True)
    assert state.token_ids == prompt[: interrupted * PREFILL_ROWS]
    state.begin([*prompt[:700], 1, 2, 3], drafting=True)
    assert_holds(state, [*prompt[:700], 1, 2])


@pytest.mark.parametrize("drafting", [False, True])
@pytest.mark.parametrize("interrupted", range(4))
def test_an_interrupt_while_going_back_is_survived(interrupted: int, drafting: bool) -> None:
    """Where some layers have gone back and others not, the longer prompt is passed again."""
    drafter = head_drafter(TARGET, tiny_head(num_blocks=2))
    state = DecodeState(TARGET, drafter)
    state.begin(TEXT[:20], drafting=True)
    layer = [*state.cache, *drafter.cache][interrupted]
    with (
        patch.object(layer, "rewind", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        state.begin([*TEXT[:5], 1, 2], drafting=True)
    state.begin(TEXT[:30], drafting=drafting)
    assert_holds(state, TEXT[:29])


def test_memory_counts_the_target_and_the_head() -> None:
    """Bytes are those of all caches, and none before the first prompt."""
    state, drafter = drafting_state()
    assert state.num_bytes == 0
    state.begin(TEXT, drafting=True)
    layers = sum(layer.num_bytes for layer in state.cache)
    assert state.num_bytes == layers + drafter.num_bytes
    assert drafter.num_bytes == layers // TARGET.dims.num_layers
