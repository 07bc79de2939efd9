"""Replaying a text tells from which side of the norms a head wants its hidden states."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mtplx.errors import UsageError
from mtplx.models.calibrate import DEPTH, Choice, calibrate, choices, surely_better
from mtplx.models.drafter import HeadRows
from mtplx.models.families.qwen3_5 import QWEN3_5
from mtplx.models.family import MtpFamily
from mtplx.speculation import HiddenStage, LayerCache
from tests.tiny import random_prompt

NUM_TOKENS = 31
TEXT = random_prompt(60, vocab_size=NUM_TOKENS)


def one_hot(token_ids: mx.array) -> mx.array:
    return (mx.arange(NUM_TOKENS) == token_ids[..., None]).astype(mx.float32)


def swapped(pair: mx.array) -> mx.array:
    return mx.concatenate([pair[..., NUM_TOKENS:], pair[..., :NUM_TOKENS]], axis=-1)


def follower(token: mx.array, before: mx.array) -> mx.array:
    """Logits of the token that the toy language has after these two, both [T, V]."""
    return one_hot((mx.argmax(token, axis=-1) + 3 * mx.argmax(before, axis=-1)) % NUM_TOKENS)


class ToyTrunk:
    """Its hidden state is a token and the one before it; its norm swaps the two."""

    def make_cache(self) -> list[LayerCache]:
        return []

    def forward(self, token_ids: mx.array, cache: list[LayerCache]) -> mx.array:
        before = mx.concatenate([token_ids[:1], token_ids[:-1]])
        return mx.concatenate([one_hot(token_ids), one_hot(before)], axis=-1)

    def normalise(self, hidden: mx.array) -> mx.array:
        return swapped(hidden)

    def logits(self, hidden: mx.array) -> mx.array:
        return follower(hidden[..., NUM_TOKENS:], hidden[..., :NUM_TOKENS])


TRUNK = ToyTrunk()


@dataclass(frozen=True)
class ToyHead:
    """Foresees the trunk without fail if it is used as it was `trained`."""

    family: MtpFamily
    trained: Choice
    target: Any = TRUNK

    @property
    def hidden_stage(self) -> HiddenStage:
        return self.family.hidden_stage

    @property
    def chained(self) -> bool:
        return self.family.chained

    def make_cache(self) -> list[list[LayerCache]]:
        return [[]]

    def run(
        self, module: int, token_ids: mx.array, hidden: mx.array, cache: list[LayerCache]
    ) -> HeadRows:
        reads_first = self.trained.hidden_stage == "before_norm"
        before = hidden[..., :NUM_TOKENS] if reads_first else hidden[..., NUM_TOKENS:]
        pair = [one_hot(token_ids), before]
        if self.family.concat != self.trained.concat:
            pair.reverse()
        made = mx.concatenate(pair, axis=-1)
        right = made if reads_first else swapped(made)
        same = self.family.recycle_stage == self.trained.recycle_stage
        return HeadRows(made, right if same else swapped(right))

    def logits(self, module: int, output: mx.array) -> mx.array:
        return follower(output[..., :NUM_TOKENS], output[..., NUM_TOKENS:])


def family(choice: Choice) -> MtpFamily:
    return replace(
        QWEN3_5,
        hidden_stage=choice.hidden_stage,
        recycle_stage=choice.recycle_stage,
        concat=choice.concat,
    )


def trials(used: Choice, trained: Choice, text: list[int] = TEXT) -> Any:
    head: Any = ToyHead(family(used), trained)
    return calibrate(head, [text])


ALL = choices(QWEN3_5)


def test_every_choice_is_tried_once_the_familys_own_first() -> None:
    """Two stages twice, and the halves of the input swapped."""
    assert ALL[0] == Choice("after_norm", "after_norm", "embedding_first")
    assert len(ALL) == len(set(ALL)) == 5
    assert len(choices(replace(QWEN3_5, chained=False))) == 3


@pytest.mark.parametrize("trained", ALL)
def test_what_the_head_was_trained_on_is_found(trained: Choice) -> None:
    """Whatever the family's data says; and the data is doubted only where it is wrong."""
    for used in (ALL[0], trained):
        found = trials(used, trained)
        best = next(trial for trial in found if trial.choice == trained)
        assert best.agreement == (1.0,) * DEPTH
        assert all(t.mean_length < 1.5 for t in found if t is not best)
        assert surely_better(found) is (None if used == trained else best)


def test_a_wrong_recycled_state_shows_behind_the_first_position() -> None:
    """The first draft is not affected by it, the others are."""
    wrong = replace(ALL[0], recycle_stage="before_norm")
    first, second, _ = trials(wrong, ALL[0])[0].agreement
    assert first == 1.0
    assert second < 0.2


def test_every_place_counts_once() -> None:
    """Rows whose whole draft lies in the text, of each text, and no more than are enough."""
    head: Any = ToyHead(QWEN3_5, ALL[0])
    assert len(calibrate(head, [TEXT * 4])[0].lengths) == 200
    found = calibrate(head, [TEXT[:20], TEXT[20:], TEXT[:5]])
    assert len(found[0].lengths) == (20 - 8 - DEPTH) + (40 - 8 - DEPTH)


def test_a_difference_by_chance_is_no_doubt() -> None:
    """A head that knows nothing is as good in every way."""
    trained = Choice("before_norm", "before_norm", "hidden_first")
    assert surely_better(trials(ALL[0], trained)) is None


def test_a_text_too_short_is_told(tmp_path: Path) -> None:
    """With its length and what it takes."""
    with pytest.raises(UsageError, match="11 tokens"):
        trials(ALL[0], ALL[0], TEXT[:11])


def test_a_real_head_is_replayed_as_it_drafts(tmp_path: Path) -> None:
    """The most probable tokens compared are those that its drafter proposes."""
    from mtplx.loading.native_folder import folder_model
    from mtplx.models.drafter import HeadDrafter
    from mtplx.speculation import DraftInput
    from tests.families.assembled import VOCAB_SIZE, assemble, write_checkpoint
    from tests.families.qwen import QWEN3_5 as RECIPE

    model = folder_model(write_checkpoint(assemble(RECIPE), tmp_path / "model"))
    assert model.head is not None
    text = random_prompt(24, vocab_size=VOCAB_SIZE)
    (own, *others) = calibrate(model.head.head, [text])
    hidden = model.target.normalise(model.target.forward(mx.array(text), model.target.make_cache()))
    preferred = mx.argmax(model.target.logits(hidden), axis=-1)
    drafter = HeadDrafter(model.head.head)
    drafter.observe(DraftInput(hidden[:8], mx.array(text[1:9])))
    rows = DraftInput(hidden[8:-1], mx.array(text[9:]))
    seen: list[mx.array] = []

    def greedy(logits: mx.array, step: int) -> tuple[mx.array, None]:
        seen.append(mx.argmax(logits, axis=-1))
        return seen[-1], None

    hits = []
    for row in range(24 - 8 - DEPTH):
        seen.clear()
        one = DraftInput(rows.hidden[row : row + 1], rows.token_ids[row : row + 1])
        drafter.propose(one, 1, greedy)
        drafter.keep()
        hits.append(bool((seen[0] == preferred[9 + row]).item()))
    assert own.agreement[0] == sum(hits) / len(hits)
    assert len(others) == 4


@pytest.mark.slow
def test_a_trained_head_tells_what_it_was_trained_on() -> None:
    """Of text that it has not seen: the family's data is right, and wrong data is doubted."""
    from mtplx.loading.native_folder import folder_model
    from mtplx.loading.tokenizer_folder import tokenizer_from_folder

    root = Path(__file__).parents[2]
    folder = root / "tests" / "assets" / "tiny-qwen3_5"
    model = folder_model(folder)
    assert model.head is not None
    source = (root / "mtplx" / "rng.py").read_text()
    text = tokenizer_from_folder(folder).encode(source, parse_special=False)[:140]
    head = model.head.head
    found = calibrate(head, [text])
    assert found[0].mean_length > 2 * found[-1].mean_length  # whose input has its halves swapped
    assert surely_better(found) is None
    wrong = replace(head, family=replace(head.family, hidden_stage="before_norm"))
    doubted = surely_better(calibrate(wrong, [text]))
    assert doubted is not None
    assert doubted.choice == found[0].choice
