"""What a request asks for, checked: fields, depth and prompt."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from mtplx.draft_options import DraftOptions
from mtplx.errors import SamplingError, UsageError
from mtplx.loading.load import DEFAULT_DEPTH, LoadedModel
from mtplx.loading.tokenizer import Tokenizer
from mtplx.params import SamplingParams
from mtplx.state import DecodeState
from mtplx.text.breakers import breaker_ids
from mtplx.text.prompt import encode_chat
from mtplx.text.template import Message

MAX_DEPTH = 16  # far deeper than drafting pays


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt as token ids. show: special tokens that are text in the reply, by name."""

    token_ids: Sequence[int]
    show: frozenset[int] = frozenset()


def encode_prompt(
    tokenizer: Tokenizer, prompt: str | Sequence[Message], *, raw: bool = False
) -> list[int]:
    """The token ids that `stream` continues. Raises UsageError where there is nothing."""
    if not prompt:
        raise UsageError("The prompt is empty. Say something for the model to answer.")
    if not isinstance(prompt, str):
        if raw:
            raise UsageError("A conversation needs the model's chat template; raw leaves it out.")
        return encode_chat(tokenizer, prompt)
    if raw or tokenizer.chat_template is None:
        return tokenizer.encode_prompt(prompt)
    return encode_chat(tokenizer, [Message("user", prompt)])


def checked_params(params: SamplingParams | None, given: dict[str, object]) -> SamplingParams:
    """The fields `given` on top of `params`. Raises SamplingError for a wrong value or name."""
    known = [field.name for field in fields(SamplingParams)]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(known)}."
            raise SamplingError(f"There is no sampling field {name!r}. {hint}")
    return replace(params or SamplingParams(), **given)  # type: ignore[arg-type]  # checked there


def with_breakers(params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
    """With the ids of what no repeated passage runs over, where anything looks for repetitions."""
    if not params.avoids_repetition:
        return params
    ids = breaker_ids(tokenizer, params.dry_breakers)
    return replace(params, dry_breaker_ids=(*params.dry_breaker_ids, *ids))


def checked_depth(
    model: LoadedModel, depth: int | None, draft: DraftOptions, state: DecodeState | None
) -> int:
    """How many tokens to draft at most. Raises UsageError for a depth that cannot be had."""
    has_head = model.can_draft and (state is None or state.drafter is not None)
    can_draft = has_head or not draft.uses_head
    if depth is None:
        return DEFAULT_DEPTH if can_draft else 0
    if isinstance(depth, bool) or not isinstance(depth, int) or not 0 <= depth <= MAX_DEPTH:
        raise UsageError(
            f"depth is {depth!r}, but must be a whole number from 0 (plain decoding) to "
            f"{MAX_DEPTH}."
        )
    if depth > 0 and not can_draft:
        reason = model.no_head_reason or "this state has no drafter."
        raise UsageError(
            f"Cannot draft {depth} tokens per round: {reason} "
            "The draft mode 'lookup' needs no head."
        )
    return depth
