"""Heads of several modules: each module is fed each row once, with the token that goes with it."""

from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
import pytest

from mtplx.cache import AttentionCache
from mtplx.models.drafter import HeadDrafter, HeadRows
from mtplx.speculation import DraftInput, DrawDraft, HiddenStage, LayerCache
from tests.tiny import random_prompt

TEXT = random_prompt(30)


@dataclass(slots=True)
class NotingHead:
    """A head that computes nothing.

    A hidden row is [row of the trunk, modules that it went through]. fed: for each module, what
    the rows of its cache were made of: (row of the trunk, modules, token).
    """

    num_modules: int
    chained: bool = True
    hidden_stage: HiddenStage = "after_norm"
    fed: list[list[tuple[int, int, int]]] = field(default_factory=list)

    def make_cache(self) -> list[list[LayerCache]]:
        self.fed = [[] for _ in range(self.num_modules)]
        return [[AttentionCache(f"module {i}")] for i in range(self.num_modules)]

    def run(
        self, module: int, token_ids: mx.array, hidden: mx.array, cache: list[LayerCache]
    ) -> HeadRows:
        (layer,) = cache
        assert isinstance(layer, AttentionCache)
        columns = (*np.array(hidden, np.int64).T, np.array(token_ids))
        rows = [
            (int(row), int(depth), int(token)) for row, depth, token in zip(*columns, strict=True)
        ]
        self.fed[module] = [*self.fed[module][: layer.offset], *rows]
        room = mx.zeros((1, 1, len(rows), 1))
        layer.update_and_fetch(room, room)
        handed_on = hidden + mx.array([0, 1])
        return HeadRows(handed_on, handed_on)

    def logits(self, module: int, output: mx.array) -> mx.array:
        return mx.zeros((output.shape[0], 64))

    def held(self, drafter: HeadDrafter) -> list[list[tuple[int, int, int]]]:
        """What each module's cache holds now."""
        offsets = [layer.offset for layer in drafter.cache]
        return [rows[:offset] for rows, offset in zip(self.fed, offsets, strict=True)]


def rows(start: int, end: int) -> DraftInput:
    """The trunk's rows from `start` to `end`, with the tokens after them."""
    hidden = mx.array([[row, 0] for row in range(start, end)], dtype=mx.float32)
    return DraftInput(hidden, mx.array(TEXT[start + 1 : end + 1]))


def follow(script: list[int]) -> DrawDraft:
    return lambda logits, step: (mx.array([script[step]], dtype=mx.int32), None)


def expected(num_modules: int, num_rows: int, *, chained: bool) -> list[list[tuple[int, int, int]]]:
    """What modules hold once the trunk has given so many rows."""
    return [
        [
            (row, module if chained else 0, TEXT[row + 1 + module])
            for row in range(max(0, num_rows - module))
        ]
        for module in range(num_modules)
    ]


@pytest.mark.parametrize("chained", [True, False])
@pytest.mark.parametrize("num_modules", [1, 2, 3])
@pytest.mark.parametrize("portions", [(12,), (1, 1, 1, 9), (2, 10), (5, 4, 3)])
def test_each_module_is_fed_each_row_once(
    portions: tuple[int, ...], num_modules: int, chained: bool
) -> None:
    """In whatever portions rows come, with drafts between them that are dropped."""
    head = NotingHead(num_modules, chained)
    drafter, start = HeadDrafter(head), 0
    for i, count in enumerate(portions):
        given = rows(start, start + count)
        if i % 2:
            drafter.observe(given)
        else:
            drafter.propose(given, 5, follow([60, 61, 62, 63, 59]))
        drafter.keep()
        start += count
        assert drafter.num_rows == start
        assert head.held(drafter) == expected(num_modules, start, chained=chained)


@pytest.mark.parametrize("num_rows", [1, 2, 12])
@pytest.mark.parametrize("num_modules", [1, 2, 3])
def test_a_draft_goes_through_the_modules_and_on_with_the_last(
    num_modules: int, num_rows: int
) -> None:
    """Step j fills module j up to the last row of the trunk, with drafted tokens; the steps after
    the last module are rows of its own."""
    head = NotingHead(num_modules)
    drafter, script = HeadDrafter(head), [60, 61, 62, 63, 59]
    draft = drafter.propose(rows(0, num_rows), 5, follow(script))
    assert draft.token_ids.tolist() == script
    tokens, last = [*TEXT[: num_rows + 1], *script], num_rows - 1
    held = head.held(drafter)
    for module in range(num_modules):
        first = [(row, module, tokens[row + 1 + module]) for row in range(num_rows)]
        assert held[module][:num_rows] == first
    beyond = [
        (last, num_modules + step, script[num_modules + step - 1])
        for step in range(5 - num_modules)
    ]
    assert held[-1][num_rows:] == beyond


def test_a_head_that_is_not_chained_drafts_a_token_with_each_module() -> None:
    """And no more: nothing stands in for the trunk's next hidden state."""
    drafter = HeadDrafter(NotingHead(3, chained=False))
    assert len(drafter.propose(rows(0, 9), 5, follow([60, 61, 62, 63, 59]))) == 3


@pytest.mark.parametrize("num_rows", [0, 1, 5, 11, 12])
@pytest.mark.parametrize("num_modules", [1, 2, 3])
def test_going_back_leaves_no_hole(num_modules: int, num_rows: int) -> None:
    """From where a drafter says that it can go back to, it goes on as if it had seen no more."""
    head = NotingHead(num_modules)
    drafter = HeadDrafter(head)
    drafter.propose(rows(0, 12), 4, follow([60, 61, 62, 63]))
    drafter.keep()
    back = drafter.reachable(num_rows)
    assert back <= num_rows
    drafter.rewind(back)
    assert drafter.num_rows == back
    drafter.observe(rows(back, 15))
    assert head.held(drafter) == expected(num_modules, 15, chained=True)
