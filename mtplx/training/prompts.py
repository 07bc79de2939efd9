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
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.FunctionDef) or ast.get_docstring(node) is None:
                continue
            doc_end = node.body[0].end_lineno or node.lineno
            if node.col_offset == 0 and 3 <= doc_end - node.lineno + 1 <= 16:
                found.append("\n".join(lines[node.lineno - 1 : doc_end]) + "\n")
    return tuple(found)


def user_prompts(seed: int) -> Iterator[Prompt]:
    """An endless stream; the same seed gives the same stream on the same Python version."""
    rng = random.Random(seed)
    parts = _parts()
    while True:
        kind = rng.choices(("task", "open", "code", "function", "sum"), (28, 30, 20, 18, 4))[0]
        if kind == "task":
            yield Prompt("chat", rng.choice(parts["tasks"]).format(rng.choice(parts["subjects"])))
        elif kind == "open":
            yield Prompt("chat", rng.choice(parts["openings"]), open=True)
        elif kind == "code":
            yield Prompt(
                "code", rng.choice(parts["code_tasks"]).format(rng.choice(parts["code_goals"]))
            )
        elif kind == "function":
            lead = rng.choice(("Complete this function:", "Finish this Python code.", "", ""))
            body = rng.choice(stdlib_functions())
            yield Prompt("code", f"{lead}\n```python\n{body}```" if lead else body)
        else:
            a, b = rng.randint(2, 120), rng.randint(2, 30)
            yield Prompt("chat", rng.choice(parts["sums"]).format(a=a, b=b))


def text_windows(
    paths: Sequence[Path], encode: Callable[[str], list[int]], length: int, seed: int
) -> Iterator[list[int]]:
    """Windows of `length` token ids from text files, in shuffled order, without overlap."""
    rng = random.Random(seed)
    order = list(paths)
    rng.shuffle(order)
    held: list[int] = []
    for path in order:
        held += encode(path.read_text(encoding="utf-8", errors="replace"))
        while len(held) >= length:
            yield held[:length]
            held = held[length:]
