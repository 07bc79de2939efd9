import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtplx.text.safe import printable

many = settings(deadline=None, derandomize=True, max_examples=200)


@pytest.mark.parametrize(
    ("attack", "shown"),
    [
        ("\x1b[2J\x1b[H", "\\e[2J\\e[H"),
        ("\x1b]0;title\x07", "\\e]0;title\\x07"),
        ("\x1b]8;;http://evil\x1b\\click", "\\e]8;;http://evil\\e\\click"),
        ("\x1b]52;c;Y3VybA==\x07", "\\e]52;c;Y3VybA==\\x07"),
        ("\x9b31m\x9d0;x\x9c", "\\x9b31m\\x9d0;x\\x9c"),
        ("good\rbad", "good\\rbad"),
        ("abc\b\b\bxyz", "abc\\b\\b\\bxyz"),
        ("a\x00\x7f\x85b", "a\\x00\\x7f\\x85b"),
        ("\u202egpj.exe\u2066", "\\u202egpj.exe\\u2066"),
        ("\ud83d", "\\ud83d"),
    ],
)
def test_what_would_steer_a_terminal_is_shown_instead(attack: str, shown: str) -> None:
    """Escape sequences, C0 and C1 controls, bidi overrides and lone surrogates are visible."""
    assert printable(attack) == shown


@many
@given(st.text())
def test_no_control_character_but_newline_and_tab_is_left(text: str) -> None:
    """The result has no control character, and can be written as UTF-8."""
    result = printable(text)
    assert {c for c in result if unicodedata.category(c) in ("Cc", "Cs")} <= {"\n", "\t"}
    assert result.encode().decode() == result


@many
@given(st.text(alphabet=st.sampled_from("a\x1b[]\x07\x9b\u202e\n")), st.integers(0, 20))
def test_text_cut_anywhere_is_as_safe_as_the_whole(text: str, place: int) -> None:
    """Escaping the parts of a stream gives what escaping the whole gives."""
    assert printable(text[:place]) + printable(text[place:]) == printable(text)


@pytest.mark.parametrize("text", ["é 你好 👩‍👩‍👧‍👦 🏴‍☠️", "a\n\tb \\ c", "שלום \u200f עולם"])
def test_ordinary_text_of_every_script_is_unchanged(text: str) -> None:
    """Newlines, tabs, joined emoji and right-to-left text come out as they went in."""
    assert printable(text) == text
