import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from mtplx.chat.render import LONGEST_SPAN, MarkdownRenderer, PlainRenderer, ThoughtRenderer
from mtplx.chat.theme import CALM, PLAIN, Theme

many = settings(deadline=None, derandomize=True, max_examples=100)
BLOCKS = ["# ", "```", "```py", "~~~", "- ", "12. ", "> ", "|", "\n", "\n\n"]
SPANS = ["**", "*", "`", "word", "kwargs", "a", "1", ".", " ", "  ", "\t", "x" * 90]
OTHERS = ["\uff0c", "字", "👍🏽", "\x1b[2J"]
WORDS = ["a", "word", "longer-word", "字", "文字\uff0c", "👨\u200d👩\u200d👧", "🇩🇪", "é"]
pieces = st.lists(st.sampled_from(BLOCKS + SPANS + OTHERS), max_size=30)
OWN_SGR = re.compile(r"\x1b\[[0-9;]*m")


def shown(
    text: str, theme: Theme = CALM, columns: int | Callable[[], int] = 40, *, cut: int = 0
) -> str:
    """A whole text rendered, in pieces of `cut` characters or at once."""
    width = columns if callable(columns) else lambda: columns
    renderer = MarkdownRenderer(theme, width)
    step = cut or len(text) or 1
    parts = [renderer.feed(text[i : i + step]) for i in range(0, len(text), step)]
    return "".join(parts) + renderer.finish()


def characters(rendered: str) -> str:
    """What is left of a rendered text without its paint."""
    return OWN_SGR.sub("", rendered)


def painting(rendered: str) -> list[tuple[str, str]]:
    """Each character that is not a space, with its paint."""
    sgr, found = "", []
    for part in re.split(r"(\x1b\[[0-9;]*m)", rendered):
        if OWN_SGR.fullmatch(part):
            sgr = "" if part == "\x1b[0m" else part
        else:
            found += [(character, sgr) for character in part if not character.isspace()]
    return found


@many
@given(pieces, st.integers(1, 7), st.sampled_from([CALM, PLAIN]))
def test_how_a_text_is_cut_makes_no_difference(parts: list[str], cut: int, theme: Theme) -> None:
    """A text in small pieces is shown and painted as the whole text at once."""
    text = "".join(parts)
    whole, pieced = shown(text, theme), shown(text, theme, cut=cut)
    assert characters(pieced) == characters(whole)
    assert painting(pieced) == painting(whole)


@many
@given(st.text(alphabet=st.characters(codec="utf-8")), st.booleans())
def test_a_model_cannot_steer_the_terminal(text: str, is_terminal: bool) -> None:
    """Only our own paint, line ends and tabs of code are left of control characters."""
    renderer = MarkdownRenderer(CALM, lambda: 40) if is_terminal else PlainRenderer()
    left = characters(renderer.feed(text) + renderer.finish())
    assert all(
        character in "\n\t" or character.isprintable() or ord(character) > 0x9F
        for character in left
    )


@pytest.mark.parametrize(
    "attack", ["\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "a\rb", "\x1b[31mred"]
)
@pytest.mark.parametrize("frame", ["{}", "`{}`", "**{}**", "```\n{}\n```", "- {}", "| {}"])
def test_an_escape_sequence_is_shown_wherever_it_stands(attack: str, frame: str) -> None:
    """In prose, spans, code and tables escape sequences come out as visible characters."""
    rendered = shown(frame.format(attack))
    assert not re.search(r"[\x00-\x09\x0b-\x1a\x1c-\x1f\x7f-\x9f]", rendered)
    assert "\x1b" not in characters(rendered)
    assert re.search(r"\\(e|x9b|r)", rendered)


@many
@given(st.lists(st.sampled_from(WORDS), max_size=60))
def test_no_line_of_words_is_wider_than_the_terminal(words: list[str]) -> None:
    """Lines of words that each fit have a column to spare, and hold every word in order."""
    rendered = shown(" ".join(words), columns=24)
    assert all(cell_len(line) < 24 for line in rendered.split("\n"))
    assert "".join(rendered.split()) == "".join(words)


@many
@given(pieces)
def test_unpainted_text_keeps_all_of_its_marks(parts: list[str]) -> None:
    """Without paint every character that is no space is shown, in order, and none is added."""
    text = "".join(parts)
    expected = text.replace("\x1b", "\\e")
    assert "".join(shown(text, PLAIN).split()) == "".join(expected.split())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a **bold** word", "a bold word\n"),
        ("**a `code` b**", "a code b\n"),
        ("call f(**kwargs) now", "call f(**kwargs) now\n"),
        ("2 ** 3 ** 4", "2 ** 3 ** 4\n"),
        ("***x***", "***x***\n"),
        ("*it*", "*it*\n"),
        ("__init__", "__init__\n"),
        ("an `open tick", "an `open tick\n"),
        ("``a`b``", "a`b\n"),
        ("## Title", "Title\n"),
        ("#hash", "#hash\n"),
        ("**open\nnext**", "**open\nnext**\n"),
        ("`" + "a" * (LONGEST_SPAN + 5) + "`", "`" + "a" * (LONGEST_SPAN + 5) + "`\n"),
    ],
)
def test_marks_go_only_where_they_are_marks(text: str, expected: str) -> None:
    """A pair of marks in one line is taken away; whatever only looks like one stays."""
    assert characters(shown(text, columns=400)) == expected


def test_code_is_never_broken() -> None:
    """A line of code that is wider than the terminal stays one line, so that it can be copied."""
    line = "    return " + "a + " * 30 + "b"
    assert line in characters(shown(f"```python\n{line}\n```\nprose", columns=40)).split("\n")


def test_a_fence_of_more_marks_holds_a_fence_of_fewer() -> None:
    """Code ends at a fence at least as long as the one that began it."""
    rendered = shown("````\n```\n**a**\n```\n````\n**b**")
    assert characters(rendered) == "````\n```\n**a**\n```\n````\nb\n"


def test_a_code_block_in_a_list_begins_and_ends() -> None:
    """A fence that is indented or follows a list mark opens code, and its like closes it."""
    rendered = shown("- ```py\n  **a**\n  ```\n- **b**")
    assert characters(rendered) == "- ```py\n  **a**\n  ```\n- b\n"


def test_further_lines_of_an_item_are_indented() -> None:
    """The text of a list item keeps to the right of its mark."""
    rendered = characters(shown("  12. one two three four five six seven eight", columns=24))
    first, *others = rendered.removesuffix("\n").split("\n")
    assert first.startswith("  12. one")
    assert others
    assert all(line.startswith("      ") and line[6] != " " for line in others)


def test_a_word_wider_than_the_terminal_is_left_whole() -> None:
    """A long address is not broken by us, so that it can be copied or opened."""
    address = "https://example.org/" + "path/" * 20
    assert f"see\n{address}" in characters(shown(f"see {address} there", columns=30))


def test_korean_words_are_left_whole() -> None:
    """Korean, which has spaces, is broken at them, though its characters are wide."""
    words = ["텍스트는", "공백이", "있어서", "단어", "단위로", "줄을"]
    assert shown(" ".join(words), columns=24).split() == words


def test_lines_follow_the_width_as_it_changes() -> None:
    """After a terminal was resized, new lines have the new width."""
    columns = 80
    renderer = MarkdownRenderer(CALM, lambda: columns)
    before = renderer.feed("word " * 60)
    columns = 30
    after = renderer.feed("word " * 60) + renderer.finish()
    assert max(map(len, before.split("\n"))) > 70
    assert all(len(line) < 30 for line in after.split("\n")[1:])
    assert (before + after).split() == ["word"] * 120


def test_empty_lines_around_a_text_are_left_out() -> None:
    """Line ends before the first and after the last character are not shown."""
    assert shown("\n\n a\n\nb\n\n\n") == " a\n\nb\n"
    assert shown("\n\n") == ""


def test_what_no_terminal_shows_is_left_as_it_is() -> None:
    """In a pipe text is neither wrapped nor painted, and ends with a line end."""
    renderer = PlainRenderer()
    text = "**a** " * 50 + "\n\n- `b`  \n字"
    assert renderer.feed(text) + renderer.finish() == text + "\n"


@pytest.mark.parametrize("cut", [1, 5, 1000])
def test_thoughts_have_a_bar_before_every_line(cut: int) -> None:
    """Lines of what was thought are set off, also those that the width makes, and only that."""
    text = "one two three four five six\n\n**seven** 字 \x1b[2J"
    renderer = ThoughtRenderer(CALM, lambda: 24)
    pieces = [renderer.feed(text[i : i + cut]) for i in range(0, len(text), cut)]
    rendered = characters("".join(pieces) + renderer.finish())
    assert rendered == "│ one two three four\n│ five six\n│ \n│ **seven** 字 \\e[2J\n"
    plain = ThoughtRenderer(PLAIN, None)
    assert plain.feed(text) + plain.finish() == (
        "| one two three four five six\n| \n| **seven** 字 \\e[2J\n"
    )
