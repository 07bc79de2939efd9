"""Text in, text out: a prompt to token ids, rounds of `decode` to text as it settles.

for event in stream("smollm2", "Why is the sky blue?", max_tokens=100):
    print(event.text, end="", flush=True)
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import overload

from mtplx.decode import decode
from mtplx.depth import DepthPolicy
from mtplx.draft_options import DraftOptions
from mtplx.loading.load import LoadedModel, load
from mtplx.loading.tokenizer import Tokenizer
from mtplx.logprobs import TokenLogprobs
from mtplx.params import SamplingParams
from mtplx.request import MAX_DEPTH as MAX_DEPTH
from mtplx.request import EncodedPrompt as EncodedPrompt
from mtplx.request import (
    as_tuned,
    checked_depth,
    checked_params,
    depth_name,
    depth_policy,
    with_breakers,
)
from mtplx.request import encode_prompt as encode_prompt
from mtplx.result import Result as Result
from mtplx.result import ScoredToken
from mtplx.result import TextEvent as TextEvent
from mtplx.rng import fresh_seed, sample_seed
from mtplx.state import DecodeState, Progress
from mtplx.stats import DecodeStats
from mtplx.text.reply import ReplyText
from mtplx.text.template import Message


@overload
def generate(
    model: LoadedModel | str | Path,
    prompt: str | Sequence[Message] | EncodedPrompt,
    params: SamplingParams | None = None,
    *,
    n: None = None,
    depth: int | str | DepthPolicy | None = None,
    draft: DraftOptions | None = None,
    state: DecodeState | None = None,
    raw: bool = False,
    interrupted: Callable[[], bool] | None = None,
    **fields: object,
) -> Result: ...


@overload
def generate(
    model: LoadedModel | str | Path,
    prompt: str | Sequence[Message] | EncodedPrompt,
    params: SamplingParams | None = None,
    *,
    n: int,
    depth: int | str | DepthPolicy | None = None,
    draft: DraftOptions | None = None,
    state: DecodeState | None = None,
    raw: bool = False,
    interrupted: Callable[[], bool] | None = None,
    **fields: object,
) -> list[Result]: ...


def generate(
    model: LoadedModel | str | Path,
    prompt: str | Sequence[Message] | EncodedPrompt,
    params: SamplingParams | None = None,
    *,
    n: int | None = None,
    depth: int | str | DepthPolicy | None = None,
    draft: DraftOptions | None = None,
    state: DecodeState | None = None,
    raw: bool = False,
    interrupted: Callable[[], bool] | None = None,
    **fields: object,
) -> Result | list[Result]:
    """The whole reply to a prompt, or with `n` the list of so many independent ones, fewer where
    one was interrupted. Arguments and errors are those of `stream` and `stream_samples`."""
    replies = stream_samples(
        model,
        prompt,
        params,
        n=1 if n is None else n,
        depth=depth,
        draft=draft,
        state=state,
        raw=raw,
        interrupted=interrupted,
        progress=None,
        **fields,
    )
    results: list[Result] = []
    for events in replies:
        results += [event.result for event in events if event.result is not None]
        if results[-1].finish_reason == "interrupted":
            break
    return results[0] if n is None else results


def stream_samples(
    model: LoadedModel | str | Path,
    prompt: str | Sequence[Message] | EncodedPrompt,
    params: SamplingParams | None = None,
    *,
    n: int,
    depth: int | str | DepthPolicy | None = None,
    draft: DraftOptions | None = None,
    state: DecodeState | None = None,
    raw: bool = False,
    interrupted: Callable[[], bool] | None = None,
    progress: Progress | None = None,
    **fields: object,
) -> Iterator[Iterator[TextEvent]]:
    """Independent replies to one prompt as they come, one after the other; the prompt is read once.

    Reply i is what `stream` gives with the seed `rng.sample_seed(seed, i)`, which its result tells.
    A reply cannot go on once the next one has begun. Arguments and errors are those of `stream`;
    UsageError also for an `n` that cannot be meant.
    """
    chosen = checked_params(params, fields)
    chosen.check_samples(n)
    loaded = model if isinstance(model, LoadedModel) else load(model)
    if not isinstance(prompt, EncodedPrompt):
        prompt = EncodedPrompt(encode_prompt(loaded.tokenizer, prompt, raw=raw))
    used = state if state is not None else loaded.new_state(list(prompt.token_ids))
    seed = chosen.seed if chosen.seed is not None else fresh_seed()
    options = draft or DraftOptions()
    if not isinstance(depth, DepthPolicy):
        checked_depth(loaded, depth, options, used)
    return (
        stream(
            loaded,
            prompt,
            replace(chosen, seed=sample_seed(seed, i)),
            depth=depth_policy(loaded, depth, options, chosen, used),
            draft=draft,
            state=used,
            interrupted=interrupted,
            progress=progress,
        )
        for i in range(n)
    )


def stream(
    model: LoadedModel | str | Path,
    prompt: str | Sequence[Message] | EncodedPrompt,
    params: SamplingParams | None = None,
    *,
    depth: int | str | DepthPolicy | None = None,
    draft: DraftOptions | None = None,
    state: DecodeState | None = None,
    raw: bool = False,
    interrupted: Callable[[], bool] | None = None,
    progress: Progress | None = None,
    **fields: object,
) -> Iterator[TextEvent]:
    """The reply to a prompt as it comes. The concatenated texts and ids are those of the result.

    model: what `load` gave, or anything it takes.
    prompt: a conversation, or one message of a user; a plain text to be continued with `raw` or
        where the model has no chat template; or token ids.
    depth: tokens drafted per round, 0 for plain decoding; "auto", which None is too, takes for
        each round as many as are expected to be fastest, or a policy decides. What auto learns
        stays with `state`. With a seed it goes by the text and the profile alone, not by the clock,
        so that the seed gives the same text again.
    draft: who drafts, and how; None leaves it to the default.
    state: from `model.new_state()`; what it shares with the prompt is not computed again. One for
        each conversation, used by one stream at a time.
    interrupted: asked between two passes over the prompt and after each round; True ends the
        reply there, with a result.
    progress: called between two passes over the prompt with the tokens read and their number.
    fields: fields of SamplingParams, in place of or on top of `params`.

    The iterator may be left or closed at any time, also by an exception: the state stays usable.
    Raises UsageError and SamplingError at once, PromptTooLongError with the first event.
    """
    chosen = checked_params(params, fields)
    loaded = model if isinstance(model, LoadedModel) else load(model)
    chosen = with_breakers(chosen, loaded.tokenizer)
    draft = as_tuned(draft or DraftOptions(), loaded)
    if not isinstance(prompt, EncodedPrompt):
        prompt = EncodedPrompt(encode_prompt(loaded.tokenizer, prompt, raw=raw))
    used = state if state is not None else loaded.new_state(list(prompt.token_ids))
    policy = depth_policy(loaded, depth, draft, chosen, used)
    return _events(loaded, used, prompt, chosen, policy, draft, interrupted, progress)


def _events(
    model: LoadedModel,
    state: DecodeState,
    prompt: EncodedPrompt,
    params: SamplingParams,
    policy: DepthPolicy,
    draft: DraftOptions,
    interrupted: Callable[[], bool] | None,
    progress: Progress | None,
) -> Iterator[TextEvent]:
    stats, depth = DecodeStats(), depth_name(policy)
    seed = params.seed if params.seed is not None else fresh_seed()
    reply = ReplyText(model.tokenizer, params.stop, show=prompt.show)
    logprobs: list[ScoredToken] = []

    def finished(reason: str) -> Result:
        ids = tuple(reply.token_ids)
        told = tuple(logprobs[: len(ids)])
        return Result(model.name, reply.text, ids, reason, depth, params.law, seed, stats, told)

    rounds = decode(
        state,
        prompt.token_ids,
        params,
        seed=seed,
        depth=policy,
        drafting=depth != 0,
        stop_ids=model.tokenizer.stop_ids,
        stats=stats,
        draft=draft,
        progress=_between_passes(interrupted, progress),
    )
    try:
        for emission in rounds:
            num_told = len(logprobs)
            logprobs += _scored(model.tokenizer, emission.logprobs)
            reason = reply.add(emission.token_ids, emission.finish_reason)
            stats.num_tokens = len(reply.token_ids)  # without what is behind a stop string
            if reason is None and interrupted is not None and interrupted():
                reason = reply.end("interrupted")
            if reason is not None:
                state.catch_up()
            result = finished(reason) if reason is not None else None
            told = tuple(logprobs[num_told : len(reply.token_ids)])
            yield TextEvent(*reply.take(), result, told)
            if reason is not None:
                return
    except _InterruptedError:
        yield TextEvent("", (), finished("interrupted"))


def _scored(tokenizer: Tokenizer, found: Sequence[TokenLogprobs]) -> Iterator[ScoredToken]:
    """The tokens with their texts."""

    def spelt(token_id: int, logprob: float) -> ScoredToken:
        return ScoredToken(token_id, tokenizer.decode([token_id], show=[token_id]), logprob)

    for token in found:
        top = tuple(spelt(*pair) for pair in token.top)
        yield replace(spelt(token.token_id, token.logprob), top=top)


class _InterruptedError(Exception):
    """Somebody wants no more of the prompt to be read."""


def _between_passes(
    interrupted: Callable[[], bool] | None, progress: Progress | None
) -> Progress | None:
    """What is to be called between two passes over the prompt."""
    if interrupted is None:
        return progress

    def told(num_read: int, num_tokens: int) -> None:
        if interrupted():
            raise _InterruptedError
        if progress is not None:
            progress(num_read, num_tokens)

    return told
