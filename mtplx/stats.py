"""What a decode counted and how long its parts took; rates are derived.

The parts of a round are told apart without stopping a GPU between them: everything is queued
first, and the host notes when each part's result is ready. What is not draft, verify or accept is
other: the host's own work, and whatever the caller does between rounds.
"""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class DraftCount:
    """Tokens that were drafted in one manner, and how many of them were accepted."""

    drafted: int = 0
    accepted: int = 0


@dataclass(slots=True)
class DecodeStats:
    """Counts and seconds of one request."""

    num_prompt_tokens: int = 0
    num_reused_tokens: int = 0  # of the prompt, already in the cache
    num_tokens: int = 0  # emitted
    num_rounds: int = 0  # target passes that emitted at least one token
    num_forward_calls: int = 0  # target passes after prefill, those undone included
    num_host_reads: int = 0  # of results; those for a request's own processors only as fallbacks
    drafted: list[int] = field(default_factory=list)  # per draft position
    accepted: list[int] = field(default_factory=list)
    sources: dict[str, DraftCount] = field(default_factory=dict)  # by who drafted: modes, "lookup"
    depths: Counter[int] = field(default_factory=Counter)  # rounds by tokens that were drafted
    reasons: Counter[str] = field(default_factory=Counter)  # rounds by why so many were to be
    fallbacks: Counter[str] = field(default_factory=Counter)  # what did not go the usual way
    prefill_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    accept_s: float = 0.0
    total_s: float = 0.0

    @property
    def other_s(self) -> float:
        return self.total_s - self.prefill_s - self.draft_s - self.verify_s - self.accept_s

    @property
    def decode_s(self) -> float:
        """Everything after prefill."""
        return self.total_s - self.prefill_s

    @property
    def tokens_per_s(self) -> float:
        """Emitted tokens over decode time; 0 before anything was emitted."""
        return self.num_tokens / self.decode_s if self.decode_s > 0 else 0.0

    @property
    def acceptance_length(self) -> float:
        """Tokens per round, the recovered or bonus token included."""
        return self.num_tokens / self.num_rounds if self.num_rounds else 0.0

    @property
    def acceptance_per_position(self) -> list[float]:
        """Share of drafted tokens that were accepted, by their place in the draft.

        A token behind a rejected one counts as not accepted.
        """
        return [a / d for a, d in zip(self.accepted, self.drafted, strict=True)]

    @property
    def depths_told(self) -> str:
        """How many rounds drafted how much, and why, the most frequent first."""
        rounds = [f"{depth}: {count:,}" for depth, count in self.depths.most_common()]
        reasons = [f"{reason}: {count:,}" for reason, count in self.reasons.most_common()]
        return f"{', '.join(rounds)} ({', '.join(reasons)})"

    @property
    def draft_mode(self) -> str | None:
        """What most drafted tokens came from: a mode of the head, or "lookup"; None without any."""
        by_tokens = sorted(self.sources, key=lambda name: self.sources[name].drafted)
        return by_tokens[-1] if by_tokens else None

    def count_source(self, name: str, num_drafted: int, num_accepted: int) -> None:
        count = self.sources.setdefault(name, DraftCount())
        count.drafted += num_drafted
        count.accepted += num_accepted

    def count_plan(self, num_drafted: int, reason: str) -> None:
        self.depths[num_drafted] += 1
        self.reasons[reason] += 1

    def count_draft(self, num_drafted: int, num_accepted: int) -> None:
        missing = num_drafted - len(self.drafted)
        self.drafted.extend([0] * missing)
        self.accepted.extend([0] * missing)
        for i in range(num_drafted):
            self.drafted[i] += 1
            self.accepted[i] += i < num_accepted
