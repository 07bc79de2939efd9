"""The status line: what is worth knowing at a glance, as much of it as the width allows."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len

from mtplx.chat.report import model_name
from mtplx.chat.session import Conversation
from mtplx.chat.status_line import fitted

if TYPE_CHECKING:
    from mtplx.generate import TextEvent

_SEPARATOR = " · "
_GIGABYTE = 1e9
_SHORTEST = 10  # columns of a model's name


@dataclass(slots=True)
class Pace:
    """The speed and the acceptance length of a reply, while it comes or after it.

    since_s: when the first round had come; the tokens of that one do not count for the speed.
    """

    num_tokens: int = 0
    num_rounds: int = 0
    num_timed: int = 0
    since_s: float | None = None
    last_s: float = 0.0

    def add(self, event: "TextEvent", clock: Callable[[], float] = time.perf_counter) -> None:
        """Take in a round."""
        if not event.token_ids:
            return
        self.last_s = clock()
        self.num_tokens += len(event.token_ids)
        self.num_rounds += 1
        if self.since_s is None:
            self.since_s = self.last_s
        else:
            self.num_timed += len(event.token_ids)

    @property
    def tokens_per_s(self) -> float:
        """0 before it is known."""
        past_s = self.last_s - (self.since_s or 0.0)
        return self.num_timed / past_s if self.num_timed and past_s > 0 else 0.0

    @property
    def acceptance_length(self) -> float:
        """Tokens per round; 0 before the first one."""
        return self.num_tokens / self.num_rounds if self.num_rounds else 0.0


def status_text(
    conversation: Conversation, pace: Pace, columns: int, *, doing: str = "", num_cached: int = 0
) -> str:
    """The line of a conversation in so many columns.

    doing: what is going on, in front of everything. num_cached: tokens of the context in use.
    """
    depth = conversation.depth
    rate, length = pace.tokens_per_s, pace.acceptance_length
    parts = [  # how soon it is left out, text
        (0, doing),
        (1, _short(model_name(conversation.transcript.model), max(columns // 4, _SHORTEST))),
        (2, f"{num_cached:,}/{conversation.context:,}"),
        (3, f"{rate:.1f}/s" if rate else ""),
        (4, f"{length:.2f} a round" if length and depth else ""),
        (5, f"depth {depth}" if depth else "MTP off"),
        (7, conversation.settings.params.law if depth else ""),
        (6, _memory()),
    ]
    return joined([(rank, text) for rank, text in parts if text], columns)


def joined(parts: list[tuple[int, str]], columns: int) -> str:
    """The parts in order, without those of the highest ranks where not all of them fit."""
    kept = list(parts)
    while len(kept) > 1 and cell_len(_SEPARATOR.join(text for _, text in kept)) > columns:
        kept.remove(max(kept))
    return _SEPARATOR.join(text for _, text in kept)


def _short(name: str, columns: int) -> str:
    name = name.removesuffix(".gguf")
    return name if cell_len(name) <= columns else fitted(name, columns - 1) + "…"


def _memory() -> str:
    import mlx.core as mx

    return f"{mx.get_active_memory() / _GIGABYTE:.1f} GB"
