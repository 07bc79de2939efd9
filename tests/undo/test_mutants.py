"""Mistakes in undoing, each as a small change of the code, and the test that notices it."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from mtplx.cache import RecurrentCache, WindowCache
from mtplx.cache.rows import RowCache
from mtplx.cache.window import ROOM
from mtplx.errors import RollbackError
from mtplx.models.tape import Playback
from mtplx.state import DecodeState
from tests.exact.mutants import Change, edit
from tests.undo import test_every_kind, test_turns, test_windows

FAILURES = (AssertionError, pytest.fail.Exception, RollbackError)
TRACE = test_every_kind.test_rejected_rows_leave_no_trace
MISSED = test_every_kind.test_a_pass_that_a_layer_missed_is_noticed_before_any_layer_moves
TWICE = test_every_kind.test_a_layer_that_ran_twice_is_noticed
EDGE = test_windows.test_blocks_across_every_edge
BRANCH = test_turns.test_another_conversation_begins_where_it_branches_off


@dataclass(frozen=True, slots=True)
class Mutant:
    """mistake: what is wrong. change: puts it into the code. noticed: fails then."""

    mistake: str
    change: Change
    noticed: Callable[[], None]

    def __str__(self) -> str:
        return self.mistake


MUTANTS = [
    Mutant(
        "convolution inputs that keep rejected tokens",
        edit(
            RecurrentCache._refolded,
            "return state.arrays",
            "return self.arrays[:1] + state.arrays[1:]",
        ),
        lambda: TRACE("qwen3_5"),
    ),
    Mutant(
        "a state that keeps rejected tokens",
        edit(
            RecurrentCache._refolded,
            "return state.arrays",
            "return state.arrays[:1] + self.arrays[1:]",
        ),
        lambda: TRACE("qwen3_5"),
    ),
    Mutant(
        "a state refolded one token too far",
        edit(RecurrentCache.rewind, "_refolded(length - ", "_refolded(length + 1 - "),
        lambda: TRACE("mamba"),
    ),
    Mutant(
        "a state that is not gone back to when nothing is kept",
        edit(RecurrentCache._refolded, "return list(self._before)", "return list(self.arrays)"),
        lambda: TRACE("lfm2"),
    ),
    Mutant(
        "the last rows of the tape in place of the first",
        edit(Playback._next, "output[:, : self.num_tokens]", "output[:, -self.num_tokens :]"),
        lambda: TRACE("qwen3_5"),
    ),
    Mutant(
        "a window that trims nothing",
        edit(RowCache.keep, "self.offset -= self._last_pass - num_tokens", "pass"),
        lambda: EDGE(12, 2),
    ),
    Mutant(
        "a window that keeps no room to go back",
        edit(
            WindowCache._make_room, "self._oldest(self.offset) - ROOM", "self._oldest(self.offset)"
        ),
        lambda: test_windows.test_it_goes_back_some_rows_at_any_time(ROOM),
    ),
    Mutant(
        "a window that is one row too narrow",
        edit(WindowCache._oldest, "self.window - 1", "self.window - 2"),
        lambda: EDGE(13, 3),
    ),
    Mutant(
        "a layer whose last pass is not checked",
        edit(
            RowCache.check,
            "self.offset != start + num_rows or self._last_pass != num_rows",
            "False",
        ),
        lambda: MISSED("gemma3_text"),
    ),
    Mutant(
        "a recurrent layer whose last pass is not checked",
        edit(
            RecurrentCache.check,
            "self._is_open or self.offset != start + num_rows or rows != {num_rows}",
            "False",
        ),
        lambda: MISSED("qwen3_5"),
    ),
    Mutant(
        "a layer that may run twice",
        edit(RecurrentCache.check, "self.offset != start + num_rows", "False"),
        lambda: TWICE("qwen3_5"),
    ),
    Mutant(
        "a checkpoint that is not gone back to",
        edit(DecodeState._restore, "layer.restore(snapshot)", "pass"),
        lambda: BRANCH("qwen3_5", 40),
    ),
    Mutant(
        "a checkpoint behind what both prompts share",
        edit(DecodeState._go_back_to, "longest(shared, fed", "longest(shared + 20, fed"),
        lambda: BRANCH("qwen3_5", 40),
    ),
    Mutant(
        "checkpoints that outlive what they stand on",
        edit(
            DecodeState._go_back_to,
            "self.checkpoints.forget_behind(len(self.token_ids), rows)",
            "pass",
        ),
        lambda: test_turns.test_a_checkpoint_does_not_outlive_its_text("qwen3_5"),
    ),
]


@pytest.mark.usefixtures("mlx_lms_rule")
@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_mistake_in_undoing_is_noticed(mutant: Mutant) -> None:
    """The test that is named for it fails once it is in the code."""
    with mutant.change(), pytest.raises(FAILURES):
        mutant.noticed()
