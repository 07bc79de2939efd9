"""What a tuning run is asked to do: classes, contexts, depths, time."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mtplx.draft_options import DraftOptions
from mtplx.errors import UsageError
from mtplx.params import SamplingParams
from mtplx.prompts import CLASSES
from mtplx.request import MAX_DEPTH

MIN_DEPTH = 7  # of the deepest arm, where nobody says otherwise
MIN_CONTEXT = 128
MIN_BUDGET_S = 5.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure.

    classes, contexts: every class at every context (tokens, ascending). max_depth: the deepest arm.
    budget_s: when to stop, whatever is missing. seed: of orders, texts and intervals.
    params, draft: how the user samples and drafts.
    """

    classes: tuple[str, ...]
    contexts: tuple[int, ...]
    params: SamplingParams
    draft: DraftOptions
    budget_s: float = 300.0
    max_depth: int = MIN_DEPTH
    seed: int = 1

    def __post_init__(self) -> None:
        if self.budget_s < MIN_BUDGET_S:
            raise UsageError(
                f"The budget is {self.budget_s:g} s, but nothing can be told in less than "
                f"{MIN_BUDGET_S:g} s. Some minutes are usual."
            )
        if not 1 <= self.max_depth <= MAX_DEPTH:
            raise UsageError(
                f"The deepest draft is {self.max_depth}, but must be from 1 to {MAX_DEPTH}."
            )


def parse_classes(text: str) -> tuple[str, ...]:
    """Classes from "chat,code". Raises UsageError for one that there is not."""
    names = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    for name in names:
        if name not in CLASSES:
            raise UsageError(f"There is no prompt class {name!r}. There are: {', '.join(CLASSES)}.")
    return names


def parse_budget(text: str) -> float:
    """Seconds from "5m", "90s", "1h" or "1m30s".

    Raises UsageError for what is no length of time.
    """
    found = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?", text.strip().lower())
    if found is None or not any(found.groups()):
        raise UsageError(f"The budget is {text!r}, but must be a time such as 5m, 90s or 1h30m.")
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(3600 * hours + 60 * minutes + seconds)


def parse_contexts(text: str, context_length: int) -> tuple[int, ...]:
    """Tokens from "1k,8k" or "512,1.5k", ascending.

    Raises UsageError for what is no number of tokens, or more than the model holds.
    """
    contexts = {_tokens(word.strip().lower()) for word in text.split(",")}
    for context in contexts:
        if not MIN_CONTEXT <= context < context_length:
            raise UsageError(
                f"A context of {context:,} tokens cannot be measured: with this model it has to "
                f"be from {MIN_CONTEXT} to {context_length - 1:,}."
            )
    return tuple(sorted(contexts))


def _tokens(word: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(k?)", word)
    if found is None:
        raise UsageError(f"{word!r} is no number of tokens. Give some such as 512, 1k or 1.5k.")
    return round(float(found[1]) * (1024 if found[2] else 1))


def usual_contexts(context_length: int) -> tuple[int, ...]:
    """A short and a long one that the model holds, with room for a reply: 1k and 8k if it can."""
    short, long = min(1024, context_length // 8), min(8192, context_length // 2)
    return tuple(sorted({max(short, MIN_CONTEXT), max(long, MIN_CONTEXT)}))


def spelt(tokens: int) -> str:
    """A number of tokens as people say it: 1024 is 1k."""
    if tokens < 1024 or tokens % 128:
        return str(tokens)
    return f"{tokens / 1024:g}k"


def names(contexts: Sequence[int]) -> str:
    """Some contexts in words."""
    return " and ".join([", ".join(map(spelt, contexts[:-1])), spelt(contexts[-1])]).removeprefix(
        " and "
    )
