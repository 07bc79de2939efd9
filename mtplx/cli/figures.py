"""The closing line of a reply."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mtplx.generate import Result


def figures(result: "Result") -> str:
    """What a reply cost and what drafting brought, in one line."""
    stats = result.stats
    parts = [
        f"{result.num_tokens} tokens at {result.tokens_per_s:.1f}/s",
        f"prompt {result.num_prompt_tokens} in {stats.prefill_s:.2f} s",
    ]
    if result.depth:
        accepted = " ".join(f"{share:.2f}" for share in result.acceptance_per_position)
        parts.append(
            f"depth {result.depth}, {result.draft_mode or 'nothing drafted'}: "
            f"{result.acceptance_length:.2f} tokens per round"
            + (f", accepted {accepted}" if accepted else "")
        )
        if result.depth == "auto":
            parts.append(f"rounds by depth {stats.depths_told}")
    else:
        parts.append("no drafting")
    if result.finish_reason != "stop":
        parts.append(
            {"length": "cut at max-tokens"}.get(result.finish_reason, result.finish_reason)
        )
    parts += [f"{name} ({count})" for name, count in sorted(stats.fallbacks.items())]
    return " · ".join(parts)
