"""Endless user messages of many kinds, drawn from a seed: what the trunk is asked to answer.

Three sources: written tasks crossed with subjects, the openings of messages that the trunk is to
finish by itself (it then writes both sides of the conversation), and Python functions of the
standard library whose bodies it is to write.
"""

import ast
import random
import sysconfig
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

LEADS = ("Complete this function:", "Finish this Python code.", "", "")  # before a function
FIRST, SECOND = range(2, 121), range(2, 31)  # the numbers in sums
SHARES = {"task": 28, "open": 30, "code": 20, "function": 18, "sum": 4}
_PIECE = 1 << 16  # characters of a file that are encoded at a time


@cache
def _parts() -> dict[str, list[str]]:
    content = (files("mtplx.data") / "training_prompts.toml").read_text(encoding="utf-8")
    return tomllib.loads(content)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A user message; `open` means that the trunk itself is to finish it."""

    kind: str
    text: str
    open: bool = False


def library_files() -> tuple[Path, ...]:
    """The Python files of the standard library: text and code that every machine has."""
    return tuple(sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")))


@cache
def stdlib_functions() -> tuple[str, ...]:
    """Signatures with docstrings of the standard library's functions, as code to complete."""
    found: list[str] = []
    for path in library_files():
        source = path.read_text(encoding="utf-8", errors="replace")
        lines = source.splitlines()
        for node in ast.parse(source).body:
            if not isinstance(node, ast.FunctionDef) or ast.get_docstring(node) is None:
                continue
            doc_end = node.body[0].end_lineno or node.lineno
            if 3 <= doc_end - node.lineno + 1 <= 16:
                found.append("\n".join(lines[node.lineno - 1 : doc_end]) + "\n")
    return tuple(found)


def user_prompts(seed: int) -> Iterator[Prompt]:
    """An endless stream; the same seed gives the same stream on the same Python version."""
    rng = random.Random(seed)
    parts = _parts()
    shares = dict(SHARES) if stdlib_functions() else {**SHARES, "function": 0}
    while True:
        kind = rng.choices(list(shares), list(shares.values()))[0]
        if kind == "task":
            yield Prompt("chat", rng.choice(parts["tasks"]).format(rng.choice(parts["subjects"])))
        elif kind == "open":
            yield Prompt("chat", rng.choice(parts["openings"]), open=True)
        elif kind == "code":
            task, goal = rng.choice(parts["code_tasks"]), rng.choice(parts["code_goals"])
            yield Prompt("code", task.format(goal))
        elif kind == "function":
            lead = rng.choice(LEADS)
            yield Prompt("code", _function(lead, rng.choice(stdlib_functions())))
        else:
            a, b = rng.choice(FIRST), rng.choice(SECOND)
            yield Prompt("chat", rng.choice(parts["sums"]).format(a=a, b=b))


def all_texts() -> Iterator[str]:
    """Every text that `user_prompts` can yield, with any seed."""
    parts = _parts()
    for task in parts["tasks"]:
        yield from (task.format(subject) for subject in parts["subjects"])
    yield from parts["openings"]
    for task in parts["code_tasks"]:
        yield from (task.format(goal) for goal in parts["code_goals"])
    for lead in dict.fromkeys(LEADS):
        yield from (_function(lead, body) for body in stdlib_functions())
    for form in parts["sums"]:
        yield from (form.format(a=a, b=b) for a in FIRST for b in SECOND)


def _function(lead: str, body: str) -> str:
    return f"{lead}\n```python\n{body}```" if lead else body


def text_windows(
    paths: Sequence[Path], encode: Callable[[str], list[int]], length: int, seed: int
) -> Iterator[list[int]]:
    """Windows of `length` token ids from text files, in shuffled order, without overlap.

    No more of the files is read than is asked for.
    """
    rng = random.Random(seed)
    order = list(paths)
    rng.shuffle(order)
    held: list[int] = []
    for path in order:
        with path.open(encoding="utf-8", errors="replace") as file:
            while piece := file.read(_PIECE):
                held += encode(piece)
                whole = len(held) // length * length
                yield from (held[start : start + length] for start in range(0, whole, length))
                held = held[whole:]
