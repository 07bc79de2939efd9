"""The prompt of each class at each context, as a model reads it."""

from collections.abc import Callable, Sequence
from itertools import cycle

from mtplx.prompts import Material, shipped_material
from mtplx.tuner.trial import Cell

MOST_CHARACTERS = 8  # of a token, on average over a page

Encode = Callable[[str], Sequence[int]]
"""(what a user says) -> token ids of the whole prompt"""


def make_cells(encode: Encode, classes: Sequence[str], contexts: Sequence[int]) -> tuple[Cell, ...]:
    """A cell for every class and context, context by context."""
    return tuple(
        Cell(kind, context, tuple(prompt_of(encode, kind, context)))
        for context in contexts
        for kind in classes
    )


def prompt_of(encode: Encode, kind: str, num_tokens: int) -> Sequence[int]:
    """A text of the class and a question about it, at most so many tokens and nearly so many.

    Of a text that is too long, the beginning; where it does not fill the context, texts of the
    other classes stand before it, again and again where there are not enough.
    """
    material = shipped_material()
    own = next(each for each in material if each.kind == kind)
    others = [each for each in material if each is not own]
    own_lines, more = own.text.split("\n"), _lines_before(others, num_tokens)

    def prompt(num_lines: int) -> Sequence[int]:
        before = more[len(more) - max(num_lines - len(own_lines), 0) :]
        return encode("\n".join([*before, *own_lines[:num_lines], "", own.question]))

    low, high = 0, len(own_lines) + len(more)
    while low < high:  # the most lines that fit
        middle = (low + high + 1) // 2
        if len(prompt(middle)) <= num_tokens:
            low = middle
        else:
            high = middle - 1
    return prompt(low)


def _lines_before(others: Sequence[Material], num_tokens: int) -> list[str]:
    """More lines than so many tokens have."""
    lines: list[str] = []
    num_characters = 0
    for each in cycle(others):
        lines = [*each.text.split("\n"), *lines]
        num_characters += len(each.text)
        if num_characters > MOST_CHARACTERS * num_tokens:
            break
    return lines
