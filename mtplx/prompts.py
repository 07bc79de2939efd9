"""The prompts that ship with the package: what is measured and compared is asked of a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import chain, zip_longest

from mtplx.errors import UsageError

CLASSES = ("chat", "code", "structured", "prose")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A message of a user. kind: one of CLASSES."""

    kind: str
    text: str


@cache
def shipped_prompts() -> tuple[Prompt, ...]:
    """All of them, the classes in turn, so that any first n are a fair mixture."""
    import tomllib

    content = (files("mtplx.data") / "prompts.toml").read_text(encoding="utf-8")
    prompts = [Prompt(entry["class"], entry["text"]) for entry in tomllib.loads(content)["prompt"]]
    by_class = [[prompt for prompt in prompts if prompt.kind == kind] for kind in CLASSES]
    in_turn = chain.from_iterable(zip_longest(*by_class))
    return tuple(prompt for prompt in in_turn if prompt is not None)


@dataclass(frozen=True, slots=True)
class Material:
    """A long text and what is asked about it. kind: one of CLASSES."""

    kind: str
    question: str
    text: str


@cache
def shipped_material() -> tuple[Material, ...]:
    """A text of each class, in the order of CLASSES."""
    import tomllib

    content = (files("mtplx.data") / "material.toml").read_text(encoding="utf-8")
    found = {
        entry["class"]: Material(entry["class"], entry["question"], entry["text"].strip("\n"))
        for entry in tomllib.loads(content)["material"]
    }
    return tuple(found[kind] for kind in CLASSES)


def chosen_prompts(kinds: Sequence[str], per_class: int) -> tuple[Prompt, ...]:
    """The first `per_class` prompts of each of these classes, class by class.

    Raises UsageError for an unknown class, and for more prompts than there are.
    """
    unknown = [kind for kind in kinds if kind not in CLASSES]
    if unknown or not kinds:
        raise UsageError(
            f"There is no prompt class {unknown[0] if unknown else ''!r}. "
            f"There are: {', '.join(CLASSES)}."
        )
    chosen: list[Prompt] = []
    for kind in dict.fromkeys(kinds):
        there = [prompt for prompt in shipped_prompts() if prompt.kind == kind]
        if not 1 <= per_class <= len(there):
            raise UsageError(
                f"{per_class} prompts per class cannot be had: of class {kind!r} there are "
                f"{len(there)}, and at least 1 is needed."
            )
        chosen += there[:per_class]
    return tuple(chosen)
