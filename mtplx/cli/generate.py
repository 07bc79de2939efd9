"""`mtplx generate`: one prompt, one reply."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtplx.cli.figures import figures
from mtplx.cli.interrupts import insistent
from mtplx.cli.model import load_model
from mtplx.cli.options import Request, takes_request
from mtplx.cli.output import is_terminal, notice, write, write_json
from mtplx.cli.standard_input import read_prompt
from mtplx.errors import UsageError
from mtplx.params import SamplingParams

if TYPE_CHECKING:
    from mtplx.generate import Result, TextEvent
    from mtplx.loading.load import LoadedModel


Prompt = Annotated[
    str | None,
    typer.Argument(
        metavar="[PROMPT]",
        help="What to answer; - or nothing takes it from standard input. What is piped in "
        "beside a prompt follows it after an empty line.",
    ),
]
Raw = Annotated[
    bool, typer.Option("--raw", help="Continue the text as it is, without a chat template.")
]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object when a reply is whole, on a line.")
]
Replies = Annotated[
    int, typer.Option("--n", metavar="N", help="So many independent replies, one by one.")
]
Logprobs = Annotated[
    int | None,
    typer.Option(
        metavar="K",
        help="With --json: the log-probability of each token and of the K likeliest there.",
        show_default="none",
    ),
]
LogprobsOf = Annotated[
    str,
    typer.Option(
        metavar="WHOSE",
        help="The model's own (model), or after temperature, filters and the like (sampling).",
    ),
]
Distributed = Annotated[
    bool,
    typer.Option(
        "--distributed", help="Split the model over the machines that mlx.launch started this on."
    ),
]
PromptCache = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Go on from what was read into this file, and put there what is read now.",
        show_default="none",
    ),
]
Stats = Annotated[
    bool | None,
    typer.Option(
        "--stats/--no-stats",
        help="Tokens per second and acceptance on standard error.",
        show_default="in a terminal",
    ),
]


@takes_request
def generate(
    request: Request,
    prompt: Prompt = None,
    raw: Raw = False,
    json: Json = False,
    n: Replies = 1,
    logprobs: Logprobs = None,
    logprobs_of: LogprobsOf = "model",
    distributed: Distributed = False,
    prompt_cache: PromptCache = None,
    stats: Stats = None,
) -> None:
    """Answer one prompt, given or from standard input.

    The text is printed as it comes: in a terminal made safe to look at, else exactly as it is.
    """
    params = replace(request.params(), logprobs=logprobs, logprobs_of=logprobs_of)
    _check(request, params, raw=raw, json=json, n=n)
    if prompt_cache is not None:
        _check_cache(prompt_cache, distributed=distributed)
    # mlx.launch gives every process a standard input that does not end.
    text = read_prompt(prompt, keep_end=raw, piped=not distributed)
    model, request, settled = _opened(request, raw=raw, distributed=distributed)
    params = replace(settled, logprobs=logprobs, logprobs_of=logprobs_of)
    shows_stats = stats if stats is not None else is_terminal(sys.stderr)
    says_profile = request.depth is None and (shows_stats or model.depth_costs is None)
    if says_profile and model.profile_note is not None:
        notice(model.profile_note)
    replies = _replies(model, request, params, text, raw=raw, n=n, prompt_cache=prompt_cache)
    for place, events in enumerate(replies, 1):
        if n > 1 and not json:
            notice(f"Reply {place} of {n}:")
        result = _reply(events, quiet=json, ends_line=n > 1)
        if json:
            write_json(result.to_json())
        if shows_stats:
            notice(figures(result))
    if request.depth is None and model.no_head_reason and request.drafts().uses_head:
        notice(f"No drafting: {model.no_head_reason}")


def _check(request: Request, params: SamplingParams, *, raw: bool, json: bool, n: int) -> None:
    """Refuse what cannot be meant before anything is read or loaded."""
    request.drafts()
    params.check_samples(n)
    if params.logprobs is not None and not json:
        raise UsageError("--logprobs shows only in JSON. Add --json.")
    if raw and request.system:
        raise UsageError("--raw leaves out the chat template, and with it --system. Choose one.")


def _check_cache(path: Path, *, distributed: bool) -> None:
    """Refuse a prompt cache that could not be written when the reply is there."""
    if distributed:
        raise UsageError(
            "--prompt-cache is for a model on one machine: of one that is split, no machine has "
            "all that was read. Leave out one of --prompt-cache and --distributed."
        )
    if not path.parent.is_dir():
        raise UsageError(f"There is no folder {path.parent} for --prompt-cache. Make it.")


def _opened(
    request: Request, *, raw: bool, distributed: bool
) -> "tuple[LoadedModel, Request, SamplingParams]":
    """The model, and the request with what the settings file and the model's makers say."""
    from mtplx.cli.effective import effective_settings

    import_module("mlx.core")  # where that fails, it does before anything is fetched
    effective = effective_settings(request.model, request)
    model = load_model(request.model, effective.head, distributed=distributed)
    depth = effective.depth(can_draft=model.can_draft or not request.drafts().uses_head)
    system = None if raw else effective.system
    return model, replace(request, system=system, depth=depth), effective.params


def _replies(
    model: "LoadedModel",
    request: Request,
    params: SamplingParams,
    text: str,
    *,
    raw: bool,
    n: int,
    prompt_cache: Path | None,
) -> "Iterator[Iterator[TextEvent]]":
    """The replies one by one; after the last the prompt cache is written, where there is one."""
    from mtplx.generate import EncodedPrompt, encode_prompt, stream_samples
    from mtplx.prompt_cache import load_prompt_cache, save_prompt_cache

    message = request.messages(text) if request.system else text
    token_ids = encode_prompt(model.tokenizer, message, raw=raw)
    if prompt_cache is not None and prompt_cache.exists():
        state = load_prompt_cache(prompt_cache, model, token_ids)
    else:
        state = model.new_state(token_ids)
    yield from stream_samples(
        model,
        EncodedPrompt(token_ids),
        params,
        n=n,
        depth=request.depth,
        draft=request.drafts(),
        state=state,
    )
    if prompt_cache is not None:
        save_prompt_cache(state, model, prompt_cache)


def _drop(text: str) -> None:
    """What is written elsewhere is not written here."""


def _reply(events: "Iterator[TextEvent]", *, quiet: bool, ends_line: bool) -> "Result":
    result = None
    with insistent(_drop if quiet else write) as show:
        for event in events:
            show(event.text)
            result = event.result
    assert result is not None
    if not quiet and (ends_line or is_terminal(sys.stdout)):
        write("\n")
    return result
