import os
import stat
import threading
from pathlib import Path

import pytest

from mtplx.chat.commands import message_of
from mtplx.chat.entry import unquoted
from mtplx.chat.history import EntryHistory


def stored(path: Path) -> list[str]:
    """What a new conversation finds, the oldest first."""
    return list(reversed(list(EntryHistory(path).load_history_strings())))


@pytest.mark.parametrize(
    "entry", ["one", "two\nlines", "\n", "# no comment", "+plus", "字 👍🏽", "a\\"]
)
def test_an_entry_comes_back_exactly(tmp_path: Path, entry: str) -> None:
    """What was entered is there in the next conversation, to the character."""
    path = tmp_path / "deep" / "history"
    history = EntryHistory(path)
    history.append_string(entry)
    history.append_string("after")
    assert stored(path) == [entry, "after"]


def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    """The file is for its owner only."""
    path = tmp_path / "history"
    EntryHistory(path).append_string("secret")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_pasted_command_comes_back_as_a_message(tmp_path: Path) -> None:
    """Pasted text of one line gets what keeps it from being a command or quoted."""
    history = EntryHistory(tmp_path / "history")
    history.is_literal = True
    for entry in ("/clear", "/clear\nall", "//x", "text", '"""a"""'):
        history.append_string(entry)
    history.is_literal = False
    history.append_string("/stats")
    assert stored(tmp_path / "history") == [
        "//clear",
        "/clear\nall",
        "///x",
        "text",
        '"""\n"""a"""\n"""',
        "/stats",
    ]
    entered = [unquoted(text) for text in stored(tmp_path / "history")]
    assert [message_of(entry) for entry in entered[:-1]] == [
        "/clear",
        "/clear\nall",
        "//x",
        "text",
        '"""a"""',
    ]


def test_two_conversations_at_once_mix_no_entries(tmp_path: Path) -> None:
    """Entries of several processes follow each other whole."""
    path = tmp_path / "history"
    texts = [f"{name}\n" * 2000 for name in "abcd"]

    def enter(text: str) -> None:
        history = EntryHistory(path)
        for _ in range(10):
            history.append_string(text)

    threads = [threading.Thread(target=enter, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(stored(path)) == sorted(texts * 10)


def test_half_an_entry_costs_only_itself(tmp_path: Path) -> None:
    """A file that was cut in the middle, or holds other bytes, keeps its whole entries."""
    path = tmp_path / "history"
    EntryHistory(path).append_string("whole")
    with path.open("ab") as file:
        file.write(b"\n# 2026-01-01\n+cut \xff")
    EntryHistory(path).append_string("after")
    assert stored(path)[0] == "whole"
    assert stored(path)[-1] == "after"


def test_a_file_that_cannot_be_written_is_a_problem_and_no_error(tmp_path: Path) -> None:
    """Where the history cannot be kept it says why, and entries are remembered until the end."""
    (tmp_path / "file").write_text("in the way")
    history = EntryHistory(tmp_path / "file" / "history")
    history.append_string("one")
    assert history.problem is not None
    assert str(tmp_path / "file") in str(history.problem)
    assert history.get_strings() == ["one"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="has no device that is always full")
def test_a_full_disk_does_not_end_the_conversation(tmp_path: Path) -> None:
    """An entry that cannot be stored is remembered, and the problem is named."""
    (tmp_path / "history").symlink_to("/dev/full")
    history = EntryHistory(tmp_path / "history")
    history.append_string("one")
    assert "the disk is full" in str(history.problem)
