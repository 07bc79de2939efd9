"""What is measured on: prompts of the length that is asked for, and the words that ask for it."""

from collections.abc import Sequence

import pytest

from mtplx.errors import UsageError
from mtplx.prompts import CLASSES, shipped_material, shipped_prompts
from mtplx.tuner.cells import make_cells, prompt_of
from mtplx.tuner.plan import (
    parse_budget,
    parse_classes,
    parse_contexts,
    spelt,
    usual_contexts,
)
from mtplx.tuner.schedule import num_replies


def by_word(text: str) -> Sequence[int]:
    return [len(word) for word in text.split()]


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("num_tokens", [200, 1024, 5000, 20_000])
def test_a_prompt_is_nearly_as_long_as_asked(kind: str, num_tokens: int) -> None:
    """Never longer, and at most a paragraph shorter, also where the texts have to repeat."""
    length = len(prompt_of(by_word, kind, num_tokens))
    assert num_tokens - 160 <= length <= num_tokens


def test_each_class_asks_its_own_question() -> None:
    """The end of a prompt is the question about the class's own text."""
    cells = make_cells(lambda text: [ord(c) for c in text], CLASSES, (9000,))
    for cell, material in zip(cells, shipped_material(), strict=True):
        text = "".join(map(chr, cell.token_ids))
        assert cell.kind == material.kind
        assert text.endswith(material.question)
        assert material.text.split("\n")[0] in text


def test_the_long_texts_are_no_training_prompts_and_no_short_ones() -> None:
    """They are texts of their own."""
    short = " ".join(prompt.text for prompt in shipped_prompts())
    for material in shipped_material():
        assert material.question not in short
        assert material.text[:200] not in short


@pytest.mark.parametrize(
    ("text", "seconds"), [("5m", 300), ("90s", 90), ("90", 90), ("1h", 3600), ("1h2m3s", 3723)]
)
def test_a_budget_is_read_as_people_write_it(text: str, seconds: float) -> None:
    """Hours, minutes and seconds."""
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "5 m", "-5m", "5d", "1.5m"])
def test_what_is_no_time_is_refused(text: str) -> None:
    """With the value."""
    with pytest.raises(UsageError, match="budget is"):
        parse_budget(text)


def test_contexts_are_read_as_people_write_them() -> None:
    """k is 1024; they come in order and once each."""
    assert parse_contexts("8k, 512,1.5k,512", 100_000) == (512, 1536, 8192)
    assert [spelt(n) for n in (200, 1024, 1536, 8192)] == ["200", "1k", "1.5k", "8k"]


@pytest.mark.parametrize("length", [512, 2048, 8192, 131_072, 1 << 20])
def test_the_usual_contexts_fit_the_model(length: int) -> None:
    """A short one and a long one, with room for a reply."""
    contexts = usual_contexts(length)
    assert len(contexts) == 2
    assert max(contexts) <= length // 2
    assert max(contexts) <= 8192


def test_classes_are_taken_once() -> None:
    """In the order that they are given in."""
    assert parse_classes("code, chat,code") == ("code", "chat")


def test_the_number_of_replies_is_told_before() -> None:
    """Eight arms twice, four arms twice, four pairs, and the check of plain decoding."""
    assert num_replies(1, 7) == 16 + 8 + 8 + 8
