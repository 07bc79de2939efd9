"""`mtplx generate`: one prompt, one reply."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from mtplx.cli.figures import figures
from mtplx.cli.model import load_model
from mtplx.cli.options import Request, takes_request
from mtplx.cli.output import is_terminal, notice, write, write_json
from mtplx.cli.standard_input import read_prompt
from mtplx.errors import UsageError

if TYPE_CHECKING:
    from mtplx.generate import Result
    from mtplx.loading.load import LoadedModel


@takes_request
def generate(
    request: Request,
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="[PROMPT]",
            help="What to answer; - or nothing takes it from standard input. What is piped in "
            "beside a prompt follows it after an empty line.",
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the text as it is, without a chat template.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object when the reply is whole.")
    ] = False,
    stats: Annotated[
        bool | None,
        typer.Option(
            "--stats/--no-stats",
            help="Tokens per second and acceptance on standard error.",
            show_default="in a terminal",
        ),
    ] = None,
) -> None:
    """Answer one prompt, given or from standard input.

    The text is printed as it comes: in a terminal made safe to look at, else exactly as it is.
    """
    _check(request, raw)
    text = read_prompt(prompt, keep_end=raw)
    model = load_model(request.model, request.head)
    result = _reply(model, request, text, raw=raw, quiet=json)
    if json:
        write_json(result.to_json())
    if request.depth is None and model.no_head_reason:
        notice(f"No drafting: {model.no_head_reason}")
    if stats if stats is not None else is_terminal(sys.stderr):
        notice(figures(result))


def _check(request: Request, raw: bool) -> None:
    """Refuse what cannot be meant before anything is read or loaded."""
    request.params()
    if raw and request.system:
        raise UsageError("--raw leaves out the chat template, and with it --system. Choose one.")


def _reply(
    model: "LoadedModel", request: Request, text: str, *, raw: bool, quiet: bool
) -> "Result":
    from mtplx.generate import stream

    events = stream(
        model,
        request.messages(text) if request.system else text,
        request.params(),
        depth=request.depth,
        raw=raw,
    )
    result = None
    for event in events:
        if not quiet:
            write(event.text)
        result = event.result
    assert result is not None
    if not quiet and is_terminal(sys.stdout):
        write("\n")
    return result
