from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtplx.text.reasoning import Piece, ReplySplitter
from mtplx.text.tags import KNOWN_TAGS, Part, Tags

many = settings(deadline=None, derandomize=True, max_examples=200)
THINK, CALL = KNOWN_TAGS[0], next(tags for tags in KNOWN_TAGS if tags.part is Part.TOOL_CALL)
USED = (THINK, CALL)
PARTS = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<thi", "<", "</", ">", "\n", "\n\n", " ",
    "word", "字👍🏽", "{}",
]  # fmt: skip


def parts_of(
    pushes: Iterable[str], tags: tuple[Tags, ...] = USED, inside: Tags | None = None
) -> list[tuple[str, str]]:
    """The parts of a reply, each with the name of what it is."""
    splitter = ReplySplitter(tags, inside)
    pieces: list[Piece] = []
    for push in pushes:
        pieces += splitter.push(push)
    found: list[tuple[str, str]] = []
    for piece in [*pieces, *splitter.finish()]:
        assert piece.text
        if piece.begins:
            found.append((piece.part.value, ""))
        name, before = found.pop()
        assert name == piece.part.value
        found.append((name, before + piece.text))
    return found


@many
@given(st.lists(st.sampled_from(PARTS), max_size=14), st.integers(1, 9), st.booleans())
def test_how_a_reply_is_cut_makes_no_difference(parts: list[str], cut: int, inside: bool) -> None:
    """In pieces of any length a reply has the parts that it has as a whole."""
    text = "".join(parts)
    opened = THINK if inside else None
    pushes = [text[i : i + cut] for i in range(0, len(text), cut)]
    assert parts_of(pushes, inside=opened) == parts_of([text], inside=opened)


TRANSCRIPT = '<think>\nHm,\n a < b </thi.\n</think>\n\nSo: x\n<tool_call>\n{"n": "é"}\n</tool_call>\n<tool_call>{}</tool_call>'  # noqa: E501


@pytest.mark.parametrize("cut", range(1, len(TRANSCRIPT) + 1))
def test_reasoning_text_and_calls_are_told_apart_in_any_pieces(cut: int) -> None:
    """One transcript in pieces of every size gives its reasoning, text and two calls."""
    pushes = [TRANSCRIPT[i : i + cut] for i in range(0, len(TRANSCRIPT), cut)]
    assert parts_of(pushes) == [
        ("reasoning", "Hm,\n a < b </thi."),
        ("text", "So: x\n"),
        ("tool_call", '{"n": "é"}'),
        ("tool_call", "{}"),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  <think>a</think>b", [("reasoning", "a"), ("text", "b")]),
        ("<think>\n\n</think>\n\nb", [("text", "b")]),
        ("<think>cut", [("reasoning", "cut")]),
        ("<think>a</thi", [("reasoning", "a</thi")]),
        ("Use the <think> tag.", [("text", "Use the <think> tag.")]),
        ("a<tool_call>b", [("text", "a"), ("tool_call", "b")]),
        ("<think>a</think><tool_call>b</tool_call>", [("reasoning", "a"), ("tool_call", "b")]),
        (
            "<tool_call>b</tool_call><think>c</think>d",
            [("tool_call", "b"), ("reasoning", "c"), ("text", "d")],
        ),
        ("<think>a</think>  d ", [("reasoning", "a"), ("text", "  d ")]),
        ("", []),
    ],
)
def test_tags_count_where_a_part_may_begin(text: str, expected: list[tuple[str, str]]) -> None:
    """Reasoning begins a reply or follows another part; elsewhere its tag is text."""
    assert parts_of([text]) == expected


@many
@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="<")))
def test_a_reply_without_tags_is_text_to_the_character(text: str) -> None:
    """Leading spaces, line ends and everything else of a plain reply stay."""
    assert parts_of(text) == ([("text", text)] if text else [])


def test_a_prompt_can_have_opened_the_reasoning() -> None:
    """Where the template opened the tag, the reply begins inside and only closes it."""
    assert parts_of(["a\n</th", "ink>\nb"], inside=THINK) == [("reasoning", "a"), ("text", "b")]


def test_tags_of_other_models_are_text() -> None:
    """Only the tags that a model uses are looked for."""
    assert parts_of(["<think>a</think>"], tags=(CALL,)) == [("text", "<think>a</think>")]


def test_what_cannot_become_a_tag_is_not_held_back() -> None:
    """A piece of text comes at once unless it ends like the beginning of a tag."""
    splitter = ReplySplitter(USED)
    assert [piece.text for piece in splitter.push("a < b <tool")] == ["a < b "]
    assert [piece.text for piece in splitter.push("box>")] == ["<toolbox>"]
