"""The prompts that ship: enough of each kind, mixed, and none that a head was trained on."""

import re
from collections import Counter

import pytest

from mtplx.errors import UsageError
from mtplx.prompts import CLASSES, chosen_prompts, shipped_prompts
from mtplx.training import prompts as training


def test_every_class_has_at_least_fourteen_prompts() -> None:
    """No class is represented by a handful of prompts."""
    counts = Counter(prompt.kind for prompt in shipped_prompts())
    assert set(counts) == set(CLASSES)
    assert min(counts.values()) >= 14


def test_the_first_of_them_are_a_fair_mixture() -> None:
    """Whoever takes the first n has every class as often, but for one."""
    kinds = [prompt.kind for prompt in shipped_prompts()]
    for n in range(1, 57):
        counts = [kinds[:n].count(kind) for kind in CLASSES]
        assert max(counts) - min(counts) <= 1


def test_no_prompt_is_there_twice() -> None:
    """Neither in the same words nor with other spaces and capitals."""
    texts = [plain(prompt.text) for prompt in shipped_prompts()]
    assert len(set(texts)) == len(texts)


def test_prompts_are_clean_text() -> None:
    """No prompt starts or ends with space, or holds a character that is not printable text."""
    for prompt in shipped_prompts():
        assert prompt.text == prompt.text.strip()
        assert all(character.isprintable() or character == "\n" for character in prompt.text)


@pytest.mark.parametrize("kind", CLASSES)
def test_prompts_vary_in_length(kind: str) -> None:
    """The longest of a class has at least four times the words of the shortest."""
    lengths = [len(prompt.text.split()) for prompt in chosen_prompts([kind], 14)]
    assert max(lengths) >= 4 * min(lengths)


def test_no_prompt_was_trained_on() -> None:
    """What is measured on is nothing that the training of a head draws its prompts from."""
    shipped = {plain(prompt.text) for prompt in shipped_prompts()}
    assert shipped.isdisjoint(map(plain, training.all_texts()))


def test_the_list_of_training_prompts_is_whole() -> None:
    """What the test above compares with holds every prompt that training really draws."""
    known = {plain(text) for text in training.all_texts()}
    stream = training.user_prompts(seed=7)
    assert {plain(next(stream).text) for _ in range(2000)} <= known


def test_an_unknown_class_is_named_with_those_there_are() -> None:
    """A slip in a class is a usage error that lists the classes."""
    with pytest.raises(UsageError, match=r"'poetry'.*chat, code, structured, prose"):
        chosen_prompts(["chat", "poetry"], 1)


@pytest.mark.parametrize("per_class", [0, -1, 1000])
def test_a_number_of_prompts_that_cannot_be_had_is_a_usage_error(per_class: int) -> None:
    """Too few or too many prompts are refused with the number there is."""
    with pytest.raises(UsageError, match=rf"{per_class} prompts.*'code' there are \d+"):
        chosen_prompts(["code"], per_class)


def test_chosen_prompts_keep_the_order_of_the_classes_asked_for() -> None:
    """A class named twice counts once, and the classes stay in the order given."""
    kinds = [prompt.kind for prompt in chosen_prompts(["prose", "chat", "prose"], 2)]
    assert kinds == ["prose", "prose", "chat", "chat"]


def plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))
