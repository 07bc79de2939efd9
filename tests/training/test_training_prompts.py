"""What the trunk is asked: reproducible, mixed, and text that is read no further than needed."""

import re
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from mtplx.training import prompts
from mtplx.training.prompts import (
    library_files,
    stdlib_functions,
    text_windows,
    user_prompts,
)


def test_the_same_seed_asks_the_same() -> None:
    """Two streams of one seed agree, those of two seeds do not."""
    one, again, other = (list(islice(user_prompts(seed), 200)) for seed in (1, 1, 2))
    assert one == again
    assert sum(a == b for a, b in zip(one, other, strict=True)) < 20


def test_prompts_are_of_all_kinds() -> None:
    """Open and closed messages, chat and code, each at least a sixth of what is asked."""
    counts = Counter((p.kind, p.open) for p in islice(user_prompts(3), 2000))
    assert set(counts) == {("chat", False), ("chat", True), ("code", False)}
    assert min(counts.values()) > 2000 / 6


def test_functions_to_complete_are_whole_heads_of_functions() -> None:
    """A definition with its documentation, which compiles once a body is there."""
    functions = stdlib_functions()
    assert len(functions) > 300
    for source in functions[::10]:
        assert source.startswith("def ")
        compile(source + "    pass\n", "function", "exec")


def test_without_the_library_there_is_still_something_to_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A Python that comes without its sources asks everything else."""
    monkeypatch.setattr(prompts, "stdlib_functions", lambda: ())
    asked = list(islice(user_prompts(1), 500))
    assert {prompt.kind for prompt in asked} == {"chat", "code"}


def test_the_default_text_is_there_and_is_text() -> None:
    """Python's own library: many files, all of them UTF-8."""
    paths = library_files()
    assert len(paths) > 100
    assert sum(len(path.read_text(encoding="utf-8")) for path in paths) > 2_000_000


def test_windows_are_the_text_from_beginning_to_end(tmp_path: Path) -> None:
    """No token is left out or comes twice, but for those that fill no window at the very end."""
    texts = {tmp_path / f"{n}.txt": chr(97 + n) * (3000 * n + 5) for n in range(4)}
    for path, text in texts.items():
        path.write_text(text)
    tokens = [t for window in text_windows(list(texts), _characters, 100, seed=1) for t in window]
    assert len(tokens) == sum(map(len, texts.values())) // 100 * 100
    runs = re.findall(r"(.)\1*", "".join(map(chr, tokens)))
    assert sorted(runs) == ["a", "b", "c", "d"]
    assert all(len(window) == 100 for window in text_windows(list(texts), _characters, 100, 1))


def test_windows_follow_from_the_seed(tmp_path: Path) -> None:
    """The order of the files is drawn, and drawn again the same."""
    paths = [tmp_path / f"{n}.txt" for n in range(8)]
    for n, path in enumerate(paths):
        path.write_text(chr(97 + n) * 50)
    one, again, other = (list(text_windows(paths, _characters, 50, seed)) for seed in (1, 1, 2))
    assert one == again
    assert one != other


def test_no_more_is_read_than_is_asked_for(tmp_path: Path) -> None:
    """The first windows of a large file cost no more than those of a small one."""
    path = tmp_path / "large.txt"
    path.write_text("word " * 400_000)
    encoded: list[int] = []

    def encode(text: str) -> list[int]:
        encoded.append(len(text))
        return _characters(text)

    assert len(list(islice(text_windows([path], encode, 384, 1), 3))) == 3
    assert sum(encoded) < 100_000


def _characters(text: str) -> list[int]:
    return [ord(character) for character in text]
