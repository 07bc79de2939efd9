"""What a conversation says about itself: the first line, the closing lines, the totals."""

from pathlib import Path

from mtplx.chat.session import Conversation
from mtplx.generate import Result

_MEGABYTE = 1e6


def opening(conversation: Conversation, *, is_interactive: bool) -> list[str]:
    """The model, whether and how it drafts, and why not."""
    model = conversation.model
    name = Path(model.name).name if Path(model.name).exists() else model.name
    if not model.can_draft:
        drafting = "MTP off, no head"
    else:
        drafting = f"MTP head, depth {conversation.depth}" if conversation.depth else "MTP off"
    first = " · ".join([name, drafting, *(["/help"] if is_interactive else [])])
    reason = model.no_head_reason
    return [first] if reason is None else [first, reason[:1].upper() + reason[1:]]


def closing(conversation: Conversation, reply: str, result: Result | None) -> str:
    """What a reply cost and what drafting brought. result: None where it was left early."""
    if result is None or result.num_tokens == 0:
        return "stopped before the first word" if not reply else "stopped"
    parts = [_count(result.num_tokens, "token"), f"{result.tokens_per_s:.1f} tokens/s"]
    if result.depth:
        shares = _shares(result.acceptance_per_position)
        parts.append(f"acceptance length {result.acceptance_length:.2f}{shares}")
    elif conversation.model.can_draft:
        parts.append("MTP off")
    else:
        parts.append("MTP off, no head")
    if result.finish_reason == "interrupted":
        parts.append("stopped")
    elif result.finish_reason == "length":
        parts.append(_cut(conversation, result))
    return " · ".join(parts)


def totals(conversation: Conversation) -> list[str]:
    """The figures of the whole conversation, one line for each kind."""
    stats, params = conversation.totals, conversation.settings.params
    state, target = conversation.state, conversation.model.target
    num_cached = len(state.token_ids) if state else 0
    cache_bytes = state.num_bytes if state else 0
    depth = f"depth {conversation.depth}" if conversation.depth else "off"
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
        "Fallbacks": ", ".join(fallbacks) or "none",
        "Sampling": f"law {params.law}, temperature {params.temperature:g}, seed "
        f"{conversation.seed}",
        "Caches": f"{cache_bytes / _MEGABYTE:.1f} MB, {num_cached:,} of "
        f"{target.context_length:,} tokens",
    }
    return [f"{name:<10} {text}" for name, text in lines.items()]


def _cut(conversation: Conversation, result: Result) -> str:
    if result.num_tokens < conversation.settings.params.max_tokens:
        return "cut: the context is full, /clear begins anew"
    return "cut by --max-tokens"


def _shares(acceptance: list[float]) -> str:
    return f" ({' '.join(f'{share:.2f}' for share in acceptance)})" if acceptance else ""


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
