"""The status line: what it says, and that it leaves the text above it alone."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from mtplx.chat.render import MarkdownRenderer
from mtplx.chat.session import Conversation
from mtplx.chat.settings import Settings
from mtplx.chat.status import Pace, joined, status_text
from mtplx.chat.status_line import FEWEST_ROWS, StatusLine, fitted
from mtplx.chat.theme import CALM
from mtplx.generate import TextEvent
from mtplx.loading.load import load
from tests.chat.conversations import GREEDY
from tests.chat.screen import Screen
from tests.tiny_gguf import write_head, write_model

few = settings(deadline=None, derandomize=True, max_examples=30)
WORDS = [
    "word",
    "字",
    "文字字",
    "👍🏽",
    "🇩🇪",
    "👨\u200d👩\u200d👧",
    "é",
    "longer-word",
    "\n",
    "\n\n",
]


@pytest.fixture(scope="module")
def conversation(tmp_path_factory: pytest.TempPathFactory) -> Conversation:
    folder = tmp_path_factory.mktemp("model")
    path = write_model(folder / "a-name-that-is-rather-long.gguf")
    head = write_head(folder / "head.safetensors", path)
    return Conversation(load(path, head=head), Settings(GREEDY, depth=3))


def pace() -> Pace:
    """Of four rounds with nine tokens, a second each."""
    found, times = Pace(), iter(range(10))
    for ids in ((1, 2), (3, 4, 5), (6,), (7, 8, 9)):
        found.add(TextEvent("", ids), clock=lambda: float(next(times)))
    return found


def test_speed_and_acceptance_come_from_the_rounds() -> None:
    """Tokens per second count from the first round on, tokens per round count all of them."""
    assert pace().tokens_per_s == pytest.approx(7 / 3)
    assert pace().acceptance_length == pytest.approx(9 / 4)
    assert Pace().tokens_per_s == 0


def test_a_wide_line_has_everything(conversation: Conversation) -> None:
    """Model, context used and limit, speed, acceptance, depth, law and memory."""
    text = status_text(conversation, pace(), 120, num_cached=500)
    assert text.startswith("a-name-that-is-rather-long · 500/1,024 · 2.3/s · 2.25 a round")
    assert "depth 3 · block · " in text
    assert text.endswith("GB")


@pytest.mark.parametrize("columns", [20, 30, 40, 60, 79])
def test_a_narrow_line_has_what_fits(conversation: Conversation, columns: int) -> None:
    """In fewer columns the least important parts are left out, and what goes on stays."""
    text = status_text(conversation, pace(), columns, doing="thinking", num_cached=500)
    assert cell_len(text) <= columns
    assert text.startswith("thinking")


def test_parts_go_by_their_rank() -> None:
    """The part of the highest rank goes first, and the order of the others stays."""
    parts = [(0, "aaa"), (3, "bbb"), (1, "ccc"), (2, "ddd")]
    assert joined(parts, 100) == "aaa · bbb · ccc · ddd"
    assert joined(parts, 16) == "aaa · ccc · ddd"
    assert joined(parts, 2) == "aaa"


def test_a_text_is_cut_between_characters() -> None:
    """A wide character that would only fit by half is left out."""
    assert fitted("a字字", 4) == "a字"
    assert fitted("abc", 3) == "abc"
    assert fitted("abc", 0) == ""


def shown(
    words: list[str], columns: int, rows: int, *, status: Callable[[StatusLine], None]
) -> str:
    """A streamed text as the screen has it in the end, `status` called between its pieces."""
    terminal = Screen(columns, rows)
    line = StatusLine(terminal.write, terminal.size, "2")
    renderer = MarkdownRenderer(CALM, lambda: columns)
    terminal.write("> a question\n\n")
    for word in words:
        terminal.write(renderer.feed(f"{word} "))
        status(line)
    terminal.write(renderer.finish())
    line.close()
    return terminal.text()


@few
@given(st.lists(st.sampled_from(WORDS), max_size=80), st.sampled_from([24, 40, 80]))
def test_the_text_is_the_same_with_and_without_the_line(words: list[str], columns: int) -> None:
    """Whatever is streamed, wide characters and emoji too, is on the screen as without a line."""
    counts = iter(range(1000))

    def tick(line: StatusLine) -> None:
        line.show(f"status 字 {next(counts)}")

    with_line = shown(words, columns, 10, status=tick)
    assert with_line == shown(words, columns, 10, status=lambda line: None)
    assert "status" not in with_line


def test_the_line_stands_in_the_last_row_and_only_there() -> None:
    """While text scrolls above it, the line is in the last row, cut to the width."""
    terminal = Screen(30, 8)
    line = StatusLine(terminal.write, terminal.size, "")
    for number in range(40):
        terminal.write(f"text {number}\n")
        line.show("the status line of a wide terminal")
        assert terminal.screen.display[-1].rstrip() == "the status line of a wide ter"
        assert "status" not in "".join(terminal.screen.display[:-1])


def test_nothing_is_written_where_nothing_changes() -> None:
    """The same text in the same terminal costs not a character, so it cannot flicker."""
    terminal = Screen(40, 10)
    line = StatusLine(terminal.write, terminal.size, "2")
    line.show("depth 2")
    before = terminal.num_written
    line.show("depth 2")
    assert terminal.num_written == before
    line.show("depth 3")
    assert 0 < terminal.num_written - before < 40


@pytest.mark.parametrize("sizes", [[(40, 10), (24, 12)], [(24, 12), (60, 8)], [(40, 20), (40, 7)]])
def test_a_resized_terminal_keeps_its_text_and_one_line(sizes: list[tuple[int, int]]) -> None:
    """After growing and shrinking the line is in the new last row, and nowhere else."""
    terminal = Screen(*sizes[0])
    line = StatusLine(terminal.write, terminal.size, "")
    for size in (*sizes, sizes[0]):
        terminal.resize(*size)
        for number in range(4):
            terminal.write(f"text {number}\n")
            line.show("status")
        assert terminal.screen.display[-1].rstrip() == "status"
        assert "status" not in "".join(terminal.screen.display[:-1])
    line.close()
    assert "status" not in terminal.text()


def test_a_terminal_of_few_rows_has_no_line() -> None:
    """Where hardly a row is left for text there is no line, and it goes when that happens."""
    terminal = Screen(40, 10)
    line = StatusLine(terminal.write, terminal.size, "")
    line.show("status")
    terminal.resize(40, FEWEST_ROWS - 1)
    line.show("status")
    assert "status" not in "".join(terminal.screen.display)
    assert terminal.screen.margins is None


def test_where_the_size_is_unknown_there_is_no_line() -> None:
    """In a pipe nothing is written."""
    written: list[str] = []
    line = StatusLine(written.append, lambda: None, "")
    line.show("status")
    line.close()
    assert written == []
