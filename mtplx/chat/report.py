"""What a conversation says about itself: its first lines, the closing lines, the totals."""

from typing import TYPE_CHECKING

from mtplx.chat.session import Conversation
from mtplx.chat.typed_path import existing
from mtplx.text.template import Message

if TYPE_CHECKING:
    from mtplx.generate import Result

NO_SWITCH = "This model's template has no switch for thinking."
ALMOST_FULL = 0.9  # of the context, from which on the closing line speaks of it
_MEGABYTE = 1e6
_NUM_SHARES = 4


def model_name(name: str) -> str:
    """A model as people know it: of a path the last part."""
    path = existing(name)
    return name if path is None else path.name


def opening(conversation: Conversation) -> list[str]:
    """Whether and how the model drafts, and why not."""
    model = conversation.model
    told = [drafting(conversation)] if conversation.can_draft else []
    is_told = conversation.settings.thinks is not None and conversation.thinking_switch is None
    unused = model.profile_note if model.depth_costs is None else None
    switch = NO_SWITCH if is_told else None
    reasons = [model.no_head_reason, model.context_note, unused, switch]
    return [*told, *(_sentence(reason) for reason in reasons if reason is not None)]


def drafting(conversation: Conversation) -> str:
    """With what the model drafts, and how much."""
    if not conversation.can_draft:
        return "MTP off, no head"
    source = "MTP head" if conversation.settings.draft.uses_head else "Drafts from repetitions"
    return f"{source}, {_depth(conversation)}" if conversation.depth else "MTP off"


def _depth(conversation: Conversation) -> str:
    tuned = conversation.model.depth_costs
    by = f" by the profile {tuned.name}" if conversation.depth == "auto" and tuned else ""
    return f"depth {conversation.depth}{by}"


def last_turn(conversation: Conversation) -> tuple[str, str]:
    """The beginning of what was said last, and the reply to it."""
    said, reply = (message.content for message in conversation.messages[-2:])
    first, *more = said.split("\n")
    return f"{first} ..." if more else first, reply


def closing(
    conversation: Conversation, reply: str, result: "Result | None", *, is_again: bool = False
) -> str:
    """What a reply cost and what drafting brought.

    result: None where it was left early. is_again: another reply was there before.
    """
    if result is None or result.num_tokens == 0:
        stays = "the reply before stays" if is_again else "Up shows your message again"
        return "stopped" if reply else f"stopped before the first word; {stays}"
    parts = [_count(result.num_tokens, "token"), f"{result.tokens_per_s:.1f} tokens/s"]
    if result.depth:
        shares = _shares(result.acceptance_per_position)
        parts.append(f"acceptance length {result.acceptance_length:.2f}{shares}")
    elif conversation.can_draft:
        parts.append("MTP off")
    else:
        parts.append("MTP off, no head")
    if result.finish_reason == "interrupted":
        parts.append("stopped")
    elif result.finish_reason == "length":
        parts.append(_cut(conversation, result))
    used = _num_used(result) / conversation.context
    if ALMOST_FULL < used < 1:
        parts.append(f"the context is {used:.0%} full")
    return " · ".join(parts)


def totals(conversation: Conversation) -> list[str]:
    """The figures of the whole conversation, one line for each kind."""
    stats, params = conversation.totals, conversation.settings.params
    state = conversation.state
    num_cached = len(state.token_ids) if state else 0
    cache_bytes = state.num_bytes if state else 0
    depth = _depth(conversation) if conversation.depth else "off"
    accepted = f", acceptance length {stats.acceptance_length:.2f}" if stats.drafted else ""
    fallbacks = [f"{name} {count:,}" for name, count in sorted(stats.fallbacks.items())]
    lines = {
        "Replies": f"{conversation.num_replies}, {_count(stats.num_tokens, 'token')} at "
        f"{stats.tokens_per_s:.1f} tokens/s",
        "Time": f"prefill {stats.prefill_s:.1f} s, draft {stats.draft_s:.1f}, verify "
        f"{stats.verify_s:.1f}, accept {stats.accept_s:.1f}, other {stats.other_s:.1f}",
        "Prompts": f"{_count(stats.num_prompt_tokens, 'token')}, of which "
        f"{stats.num_reused_tokens:,} reused",
        "Drafting": depth + accepted + _shares(stats.acceptance_per_position),
        "Rounds": stats.depths_told if stats.drafted else "",
        "Fallbacks": ", ".join(fallbacks) or "none",
        "Sampling": f"law {params.law}, temperature {params.temperature:g}, seed "
        f"{conversation.seed}",
        "Caches": f"{cache_bytes / _MEGABYTE:.1f} MB, {num_cached:,} of "
        f"{conversation.context:,} tokens",
    }
    return [_row(name, text) for name, text in lines.items() if text]


def usage(conversation: Conversation) -> list[str]:
    """The tokens of the next prompt by who said them, and the room that is left."""
    from mtplx.text.prompt import encode_chat

    transcript, tokenizer = conversation.transcript, conversation.model.tokenizer
    said: dict[str, list[Message]] = {}
    for message in transcript.prompt:
        said.setdefault(message.role, []).append(message)
    lines = [
        _row(role.capitalize(), f"{_num_tokens(conversation, texts):,} in {len(texts)}")
        for role, texts in said.items()
    ]
    prompt = encode_chat(tokenizer, transcript.prompt, **conversation.switches) if said else []
    context = conversation.context
    lines.append(_row("Prompt", f"{_count(len(prompt), 'token')} with the template's own"))
    left = max(context - len(prompt), 0)
    lines.append(_row("Left", f"{left:,} of {context:,}"))
    if transcript.first:
        lines.append(_row("Left out", f"the first {transcript.first} messages"))
    return lines


def _num_tokens(conversation: Conversation, messages: list[Message]) -> int:
    encode = conversation.model.tokenizer.encode
    return sum(len(encode(message.content, parse_special=False)) for message in messages)


def _row(name: str, text: str) -> str:
    return f"{name:<10} {text}"


def _cut(conversation: Conversation, result: "Result") -> str:
    if _num_used(result) >= conversation.context:
        return "cut: the context is full, /clear begins anew"
    if result.num_tokens < conversation.settings.params.max_tokens:
        return "cut: no memory is free for more"
    return "cut by max_tokens"


def _num_used(result: "Result") -> int:
    return result.num_prompt_tokens + result.num_tokens


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _shares(acceptance: list[float]) -> str:
    """How often each place of a draft was accepted; a passage has more than anyone reads."""
    told = [f"{share:.2f}" for share in acceptance[:_NUM_SHARES]]
    more = ["..."] if len(acceptance) > len(told) else []
    return f" ({' '.join([*told, *more])})" if told else ""


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
