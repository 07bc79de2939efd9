"""Fitting a conversation into the context: what is left out, and how long the reply may be."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mtplx.errors import MemoryLimitError, PromptTooLongError
from mtplx.loading.tokenizer import Tokenizer
from mtplx.text.prompt import encode_chat
from mtplx.text.template import Message

RESERVE = 4  # a reply is promised this part of the context, or max_tokens where that is less


@dataclass(frozen=True, slots=True)
class Room:
    """Tokens that prompt and reply may have. is_memory: what is free does not hold more."""

    num_tokens: int
    is_memory: bool = False


@dataclass(frozen=True, slots=True)
class Fitted:
    """A prompt that fits. max_tokens: of the reply. num_dropped: messages that were left out."""

    token_ids: list[int]
    max_tokens: int
    num_dropped: int


def fit(
    tokenizer: Tokenizer,
    prompt: Sequence[Message],
    switches: Mapping[str, Any],
    room: Room,
    *,
    max_tokens: int,
    drops: bool,
) -> Fitted:
    """The token ids of a prompt, and the room behind it.

    drops: leave out the oldest turns, whole ones, where the reply would have less than its part;
        then so many that half of the context is free, so that this is not done at every turn.
    Raises PromptTooLongError, or MemoryLimitError where the memory is what is too small.
    """
    system = [message for message in prompt[:1] if message.role == "system"]
    turns = list(prompt[len(system) :])
    num_dropped = 0
    token_ids = encode_chat(tokenizer, prompt, **switches)
    goal = room.num_tokens - min(max_tokens, room.num_tokens // RESERVE)
    while drops and len(token_ids) > goal and len(turns) > 2:
        goal = room.num_tokens // 2
        del turns[:2]
        num_dropped += 2
        token_ids = encode_chat(tokenizer, [*system, *turns], **switches)
    if len(token_ids) >= room.num_tokens:
        raise _too_long(len(token_ids), room, drops=drops)
    return Fitted(token_ids, min(max_tokens, room.num_tokens - len(token_ids)), num_dropped)


def _too_long(num_tokens: int, room: Room, *, drops: bool) -> PromptTooLongError | MemoryLimitError:
    most = max(room.num_tokens - 1, 0)
    if room.is_memory:
        return MemoryLimitError(
            f"The prompt has {num_tokens:,} tokens; the memory that is free now holds "
            f"{most:,} at most. Close other programs, shorten it, or begin anew with /clear."
        )
    remedy = (
        "Shorten the message."
        if drops
        else "Shorten the message, begin anew with /clear, or have the oldest turns left out with "
        "/context drop."
    )
    return PromptTooLongError(
        f"The prompt has {num_tokens:,} tokens; the context has room for {most:,}. {remedy}"
    )
