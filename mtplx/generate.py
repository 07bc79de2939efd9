"""Text in, text out: a prompt to token ids, rounds of `decode` to text as it settles.

for event in stream("smollm2", "Why is the sky blue?", max_tokens=100):
    print(event.text, end="", flush=True)
"""

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

from mtplx.decode import Emission, decode
from mtplx.depth import fixed_depth
from mtplx.errors import SamplingError, UsageError
from mtplx.loading.load import DEFAULT_DEPTH, LoadedModel, load
from mtplx.loading.tokenizer import Tokenizer
from mtplx.params import SamplingParams
from mtplx.rng import fresh_seed
from mtplx.state import DecodeState
from mtplx.stats import DecodeStats
from mtplx.text.detokenise import Detokeniser
from mtplx.text.prompt import encode_chat
from mtplx.text.stops import StopMatcher
from mtplx.text.template import Message

MAX_DEPTH = 16  # far deeper than drafting pays


@dataclass(frozen=True, slots=True)
class Result:
    """A finished reply.

    text: without the end token or the stop string, and without half a character.
    token_ids: every emitted id, the end token or the token that completed a stop string last.
    finish_reason: "stop" (an end token or a stop string), "length" (max_tokens, or the context is
        full) or "interrupted".
    depth: tokens drafted per round; 0 is plain decoding.
    seed: the one that was used; with it the same request gives the same text.
    """

    model: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    depth: int
    law: str
    seed: int
    stats: DecodeStats

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

    def to_json(self) -> dict[str, object]:
        """Everything as plain values; the timings without the last sum to the last."""
        stats = self.stats
        return {
            "model": self.model,
            "text": self.text,
            "token_ids": list(self.token_ids),
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
    """

    text: str
    token_ids: tuple[int, ...]
    result: Result | None = None


def generate(
    model: LoadedModel | str | Path,
    prompt: str | Sequence[Message],
    params: SamplingParams | None = None,
    *,
    depth: int | None = None,
    state: DecodeState | None = None,
    raw: bool = False,
    interrupted: Callable[[], bool] | None = None,
    **fields: object,
) -> Result:
    """The whole reply to a prompt. Arguments and errors are those of `stream`."""
    events = stream(
        model,
        prompt,
        params,
        depth=depth,
        state=state,
        raw=raw,
        interrupted=interrupted,
        **fields,
    )
    results = [event.result for event in events if event.result is not None]
    return results[0]


def stream(
    model: LoadedModel | str | Path,
    prompt: str | Sequence[Message],
    params: SamplingParams | None = None,
    *,
    depth: int | None = None,
    state: DecodeState | None = None,
    raw: bool = False,
    interrupted: Callable[[], bool] | None = None,
    **fields: object,
) -> Iterator[TextEvent]:
    """The reply to a prompt as it comes. The concatenated texts and ids are those of the result.

    model: what `load` gave, or anything it takes.
    prompt: a conversation, or one message of a user; a plain text to be continued with `raw` or
        where the model has no chat template.
    depth: tokens drafted per round, 0 for plain decoding; None is the default where the model has
        an MTP head, else 0.
    state: from `model.new_state()`; what it shares with the prompt is not computed again. One for
        each conversation, used by one stream at a time.
    interrupted: asked after each round; True ends the reply there, with a result.
    fields: fields of SamplingParams, in place of or on top of `params`.

    The iterator may be left or closed at any time, also by an exception: the state stays usable.
    Raises UsageError and SamplingError at once, PromptTooLongError with the first event.
    """
    chosen = _params(params, fields)
    loaded = model if isinstance(model, LoadedModel) else load(model)
    num_drafted = _depth(loaded, depth, state)
    prompt_ids = encode_prompt(loaded.tokenizer, prompt, raw=raw)
    used = state if state is not None else loaded.new_state(prompt_ids)
    return _events(loaded, used, prompt_ids, chosen, num_drafted, interrupted)


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


def _params(params: SamplingParams | None, given: dict[str, object]) -> SamplingParams:
    known = [field.name for field in fields(SamplingParams)]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(known)}."
            raise SamplingError(f"There is no sampling field {name!r}. {hint}")
    return replace(params or SamplingParams(), **given)  # type: ignore[arg-type]  # checked there


def _depth(model: LoadedModel, depth: int | None, state: DecodeState | None) -> int:
    can_draft = model.can_draft and (state is None or state.drafter is not None)
    if depth is None:
        return DEFAULT_DEPTH if can_draft else 0
    if isinstance(depth, bool) or not isinstance(depth, int) or not 0 <= depth <= MAX_DEPTH:
        raise UsageError(
            f"depth is {depth!r}, but must be a whole number from 0 (plain decoding) to "
            f"{MAX_DEPTH}."
        )
    if depth > 0 and not can_draft:
        reason = model.no_head_reason or "this state has no drafter."
        raise UsageError(f"Cannot draft {depth} tokens per round: {reason}")
    return depth


class _Reply:
    """The text and ids of a reply so far, and where it ends.

    Tokens are taken one by one, so that a reply ends at the same token and the same character
    however many of them a round brings.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self.text = ""
        self.token_ids: list[int] = []
        self._detokeniser = Detokeniser(tokenizer)
        self._stops = StopMatcher(stops)

    def add(self, emission: Emission) -> str | None:
        """Take in a round, as far as it belongs to the reply; gives why the reply ends, or None."""
        end_token = len(emission.token_ids) - 1 if emission.finish_reason == "stop" else None
        for i, token_id in enumerate(emission.token_ids):
            self.token_ids.append(token_id)
            detokeniser = self._detokeniser
            text = detokeniser.finish() if i == end_token else detokeniser.push([token_id])
            settled, ended = self._stops.push(text)
            self.text += settled
            if ended:
                return "stop"
        return None if emission.finish_reason is None else self.end(emission.finish_reason)

    def end(self, reason: str) -> str:
        """Nothing follows, so what might have become a stop string is text; gives why it ends."""
        settled, ended = self._stops.finish()
        self.text += settled
        return "stop" if ended else reason


def _events(
    model: LoadedModel,
    state: DecodeState,
    prompt_ids: list[int],
    params: SamplingParams,
    depth: int,
    interrupted: Callable[[], bool] | None,
) -> Iterator[TextEvent]:
    stats = DecodeStats()
    seed = params.seed if params.seed is not None else fresh_seed()
    finished = partial(
        Result, model=model.name, depth=depth, law=params.law, seed=seed, stats=stats
    )
    reply = _Reply(model.tokenizer, params.stop)
    num_shown = num_told = 0
    for emission in decode(
        state,
        prompt_ids,
        params,
        seed=seed,
        depth=fixed_depth(depth),
        drafting=depth > 0,
        stop_ids=model.tokenizer.stop_ids,
        stats=stats,
    ):
        reason = reply.add(emission)
        stats.num_tokens = len(reply.token_ids)  # without what a block holds behind a stop string
        if reason is None and interrupted is not None and interrupted():
            reason = reply.end("interrupted")
        text, token_ids = reply.text[num_shown:], tuple(reply.token_ids[num_told:])
        num_shown, num_told = len(reply.text), len(reply.token_ids)
        if reason is None:
            yield TextEvent(text, token_ids)
            continue
        whole = tuple(reply.token_ids)
        result = finished(text=reply.text, token_ids=whole, finish_reason=reason)
        yield TextEvent(text, token_ids, result)
        return
