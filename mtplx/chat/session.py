"""A conversation: what was said, how replies are to be made, and what they have cost.

Nothing here knows of a terminal. The prompt of every reply is made anew from the messages, and
one decode state per conversation finds out how much of it has been computed already.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from mtplx.errors import CheckpointError, UsageError
from mtplx.generate import MAX_DEPTH, TextEvent, encode_prompt, stream
from mtplx.loading.load import DEFAULT_DEPTH, LoadedModel
from mtplx.params import SamplingParams
from mtplx.rng import fresh_seed
from mtplx.state import DecodeState
from mtplx.stats import DecodeStats
from mtplx.text.template import Message


@dataclass(frozen=True, slots=True)
class Settings:
    """How replies are made; what a command changes takes effect with the next one.

    params: its seed may be None: each conversation then takes a fresh one.
    depth: tokens drafted per round; None is what usually pays.
    drafts: whether to draft at all, where the model has a head.
    system: what the model is told beforehand; None is the chat template's own.
    """

    params: SamplingParams = field(default_factory=SamplingParams)
    depth: int | None = None
    drafts: bool = True
    system: str | None = None


class Conversation:
    """One conversation with one model. Only what `begin` returns may compute with the model.

    Raises CheckpointError for a model that knows no turns, and UsageError for a depth that it
    cannot draft.
    """

    def __init__(self, model: LoadedModel, settings: Settings) -> None:
        _check(model, settings)
        self.model = model
        self.settings = settings
        self.messages: list[Message] = []
        self.totals = DecodeStats()  # of all replies whose decoding has ended
        self.num_replies = 0
        self.seed = settings.params.seed if settings.params.seed is not None else fresh_seed()
        self.state: DecodeState | None = None

    @property
    def depth(self) -> int:
        """Tokens drafted per round; 0 is plain decoding."""
        if not (self.settings.drafts and self.model.can_draft):
            return 0
        return DEFAULT_DEPTH if self.settings.depth is None else self.settings.depth

    @property
    def prompt(self) -> list[Message]:
        """Everything the model is given for the next reply."""
        system = self.settings.system
        return [*([Message("system", system)] if system else []), *self.messages]

    def fresh(self) -> "Conversation":
        """A new conversation with the same model and settings."""
        return Conversation(self.model, self.settings)

    def begin(self, text: str) -> Callable[[Callable[[], bool]], Iterator[TextEvent]]:
        """Say something; what is returned gives the reply, until its argument answers True.

        To be followed by `end` or `take_back`.
        """
        self.messages.append(Message("user", text))
        prompt = self.prompt
        params = replace(self.settings.params, seed=self.seed)
        depth = self.depth

        def reply(cancelled: Callable[[], bool]) -> Iterator[TextEvent]:
            if self.state is None:
                self.state = self.model.new_state(encode_prompt(self.model.tokenizer, prompt))
            for event in stream(
                self.model, prompt, params, depth=depth, state=self.state, interrupted=cancelled
            ):
                if event.result is not None:
                    add_stats(self.totals, event.result.stats)
                yield event

        return reply

    def end(self, reply: str) -> None:
        """The reply to what was said last, as far as it went."""
        self.messages.append(Message("assistant", reply))
        self.num_replies += 1

    def take_back(self) -> None:
        """Unsay what was said last, which has had no reply."""
        del self.messages[-1]


def add_stats(totals: DecodeStats, stats: DecodeStats) -> None:
    """Add the counts and times of one request to those of several."""
    totals.num_prompt_tokens += stats.num_prompt_tokens
    totals.num_reused_tokens += stats.num_reused_tokens
    totals.num_tokens += stats.num_tokens
    totals.num_rounds += stats.num_rounds
    totals.num_forward_calls += stats.num_forward_calls
    totals.num_host_reads += stats.num_host_reads
    totals.drafted = _sums(totals.drafted, stats.drafted)
    totals.accepted = _sums(totals.accepted, stats.accepted)
    totals.fallbacks += stats.fallbacks
    totals.prefill_s += stats.prefill_s
    totals.draft_s += stats.draft_s
    totals.verify_s += stats.verify_s
    totals.accept_s += stats.accept_s
    totals.total_s += stats.total_s


def _check(model: LoadedModel, settings: Settings) -> None:
    if model.tokenizer.chat_template is None:
        raise CheckpointError(
            f"{model.name} has no chat template, so it cannot hold a conversation. Use a chat or "
            "instruct model, or continue a plain text with `mtplx generate --raw`."
        )
    if settings.depth is None:
        return
    if not 1 <= settings.depth <= MAX_DEPTH:
        raise UsageError(f"The depth is {settings.depth}, but must be off or 1 to {MAX_DEPTH}.")
    if not model.can_draft:
        raise UsageError(f"Cannot draft {settings.depth} tokens per round: {model.no_head_reason}")


def _sums(first: list[int], second: list[int]) -> list[int]:
    return [a + b for a, b in zip_longest(first, second, fillvalue=0)]
