"""The tags with which models mark what they think and the tools they call."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, unique

from mtplx.loading.tokenizer import Tokenizer


@unique
class Part(Enum):
    """What a part of a reply is."""

    TEXT = "text"
    REASONING = "reasoning"
    TOOL_CALL = "tool_call"


@dataclass(frozen=True, slots=True)
class Tags:
    """How a model marks a part of its reply."""

    part: Part
    opening: str
    closing: str


# As published chat templates spell them.
KNOWN_TAGS = (
    Tags(Part.REASONING, "<think>", "</think>"),
    Tags(Part.REASONING, "<thinking>", "</thinking>"),
    Tags(Part.REASONING, "[THINK]", "[/THINK]"),
    Tags(Part.REASONING, "<|START_THINKING|>", "<|END_THINKING|>"),
    Tags(Part.REASONING, "<seed:think>", "</seed:think>"),
    Tags(Part.REASONING, "◁think▷", "◁/think▷"),
    Tags(Part.TOOL_CALL, "<tool_call>", "</tool_call>"),
    Tags(Part.TOOL_CALL, "<|tool_call_start|>", "<|tool_call_end|>"),
)
_TAIL = 16  # tokens at the end of a prompt that may hold an opening tag and spaces


def template_tags(template: str) -> tuple[Tags, ...]:
    """The tags that a chat template writes or looks for."""
    return tuple(tags for tags in KNOWN_TAGS if tags.closing in template)


def reply_tags(tokenizer: Tokenizer) -> tuple[Tags, ...]:
    """The tags a model uses: those its template knows, and those that are tokens."""
    known = template_tags(tokenizer.chat_template or "")
    return tuple(
        tags
        for tags in KNOWN_TAGS
        if tags in known or _token_id(tokenizer, tags.closing) is not None
    )


def tag_ids(tokenizer: Tokenizer, tags: Iterable[Tags]) -> frozenset[int]:
    """The ids of those tags that are special tokens, which detokenising would leave out."""
    found = (_token_id(tokenizer, name) for pair in tags for name in (pair.opening, pair.closing))
    return frozenset(token_id for token_id in found if token_id is not None) & tokenizer.special_ids


def opened_by(tokenizer: Tokenizer, prompt_ids: Sequence[int], tags: Iterable[Tags]) -> Tags | None:
    """The tags that the end of a prompt has opened, so that the reply begins inside them."""
    end = tokenizer.decode(prompt_ids[-_TAIL:], show=tokenizer.special_ids).rstrip()
    return next((pair for pair in tags if end.endswith(pair.opening)), None)


def _token_id(tokenizer: Tokenizer, name: str) -> int | None:
    ids = tokenizer.encode(name, parse_special=True)
    return ids[0] if len(ids) == 1 and tokenizer.token(ids[0]) == name else None
