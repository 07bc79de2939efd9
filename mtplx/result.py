"""What a finished reply is, and how it was come by."""

from dataclasses import asdict, dataclass

from mtplx.stats import DecodeStats


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token and its log-probability, natural, in the place where it stands.

    text: by itself, so half a character is U+FFFD; the name of a token that is no text.
    top: the most probable tokens in that place, best first and equal ones by id; impossible ones
        are left out, and the token itself need not be among them.
    """

    token_id: int
    text: str
    logprob: float
    top: "tuple[ScoredToken, ...]" = ()

    def to_json(self) -> dict[str, object]:
        """Plain values; the tokens in `top` have no `top` of their own."""
        return {**_plain(self), "top": [_plain(token) for token in self.top]}


def _plain(token: ScoredToken) -> dict[str, object]:
    return {"token_id": token.token_id, "text": token.text, "logprob": token.logprob}


@dataclass(frozen=True, slots=True)
class Result:
    """A finished reply.

    text: without the end token or the stop string, and without half a character.
    token_ids: every emitted id, the end token or the token that completed a stop string last.
    finish_reason: "stop" (an end token or a stop string), "length" (max_tokens, or the context is
        full) or "interrupted".
    depth: tokens drafted per round, 0 is plain decoding, or "auto".
    seed: the one that was used; a request with this seed gives the same text again. Where none was
        asked for, "auto" had an eye on the clock as well: then that holds at temperature 0 and
        with the law "coupled" only.
    logprobs: one for each id where the request asks for them, else none.
    """

    model: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    depth: int | str
    law: str
    seed: int
    stats: DecodeStats
    logprobs: tuple[ScoredToken, ...] = ()

    @property
    def num_prompt_tokens(self) -> int:
        return self.stats.num_prompt_tokens

    @property
    def num_reused_tokens(self) -> int:
        """Tokens of the prompt that were in the caches already."""
        return self.stats.num_reused_tokens

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def tokens_per_s(self) -> float:
        """Emitted tokens over the time after prefill."""
        return self.stats.tokens_per_s

    @property
    def acceptance_length(self) -> float:
        """Tokens per round, the recovered or bonus token included."""
        return self.stats.acceptance_length

    @property
    def acceptance_per_position(self) -> list[float]:
        """Share of drafted tokens that were accepted, by their place in the draft."""
        return self.stats.acceptance_per_position

    @property
    def draft_mode(self) -> str | None:
        """What most drafted tokens came from: a mode of the head, or "lookup"; None without any."""
        return self.stats.draft_mode

    def to_json(self) -> dict[str, object]:
        """Everything as plain values; the timings without the last sum to the last."""
        stats = self.stats
        return {
            "model": self.model,
            "text": self.text,
            "token_ids": list(self.token_ids),
            **({"logprobs": [t.to_json() for t in self.logprobs]} if self.logprobs else {}),
            "num_prompt_tokens": self.num_prompt_tokens,
            "num_reused_tokens": self.num_reused_tokens,
            "num_tokens": self.num_tokens,
            "finish_reason": self.finish_reason,
            "depth": self.depth,
            "law": self.law,
            "seed": self.seed,
            "tokens_per_s": self.tokens_per_s,
            "acceptance_length": self.acceptance_length,
            "acceptance_per_position": self.acceptance_per_position,
            "draft_mode": self.draft_mode,
            "drafts": {name: asdict(count) for name, count in stats.sources.items()},
            "depths": {str(depth): stats.depths[depth] for depth in sorted(stats.depths)},
            "depth_reasons": dict(stats.reasons),
            "fallbacks": dict(stats.fallbacks),
            "timings": {
                "prefill_s": stats.prefill_s,
                "draft_s": stats.draft_s,
                "verify_s": stats.verify_s,
                "accept_s": stats.accept_s,
                "other_s": stats.other_s,
                "total_s": stats.total_s,
            },
        }


@dataclass(frozen=True, slots=True)
class TextEvent:
    """What a round added: text that is settled, which may be none, and the ids it emitted.

    result: on the last event only.
    logprobs: one for each id where the request asks for them, else none.
    """

    text: str
    token_ids: tuple[int, ...]
    result: Result | None = None
    logprobs: tuple[ScoredToken, ...] = ()
