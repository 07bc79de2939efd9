"""The options that every verb with a model and sampling shares, each stated once.

    @takes_request
    def verb(request: Request, more: Annotated[str, typer.Option()] = "") -> None: ...

gives `verb` one option for each field of `Request`.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Concatenate, ParamSpec, get_type_hints

import typer

from mtplx.errors import SamplingError
from mtplx.params import SamplingParams
from mtplx.text.template import Message

DEFAULT_MODEL = "smollm2"
# For the default model: its publishers give 0.2 and 0.9. Facts and code suffer at 0.7 in a model of
# this size, and verses repeat themselves at 0.2.
DEFAULT_TEMPERATURE, DEFAULT_TOP_P = 0.3, 0.9
SAMPLING = "Sampling"
_More = ParamSpec("_More")


def parse_depth(text: str) -> int:
    """A draft depth from the command line: a number, or "off" for 0."""
    if text == "off":
        return 0
    try:
        return int(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is neither a number nor 'off'.") from error


Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        metavar="MODEL",
        help="A GGUF file, a folder of safetensors, a Hugging Face id or an alias.",
    ),
]
Head = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The MTP head to draft with, in place of the one found."),
]
Depth = Annotated[
    int | None,
    typer.Option(
        parser=parse_depth,
        metavar="N|off",
        help="Tokens to draft per round; off is plain decoding.",
        show_default="what pays on most machines",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a command line asks of a model. The annotations are the options."""

    model: Model = DEFAULT_MODEL
    head: Head = None
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What the model is told beforehand.")
    ] = None
    max_tokens: Annotated[
        int, typer.Option(metavar="N", help="End the reply after this many tokens.")
    ] = 512
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="End the reply before this text; may be repeated."),
    ] = None
    depth: Depth = None
    law: Annotated[
        str,
        typer.Option(
            metavar="LAW", help="How drafted tokens are accepted; none changes the distribution."
        ),
    ] = "rejection"
    temp: Annotated[
        float,
        typer.Option(
            metavar="T", help="Temperature; 0 takes the likeliest token.", rich_help_panel=SAMPLING
        ),
    ] = DEFAULT_TEMPERATURE
    top_p: Annotated[
        float,
        typer.Option(
            metavar="P",
            help="Keep the likeliest tokens that hold this mass; 1 keeps all.",
            rich_help_panel=SAMPLING,
        ),
    ] = DEFAULT_TOP_P
    top_k: Annotated[
        int,
        typer.Option(
            metavar="K", help="Keep the K likeliest tokens; 0 keeps all.", rich_help_panel=SAMPLING
        ),
    ] = 0
    min_p: Annotated[
        float,
        typer.Option(
            metavar="P",
            help="Keep tokens at least this likely, relative to the likeliest.",
            rich_help_panel=SAMPLING,
        ),
    ] = 0.0
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="The same seed gives the same text.",
            rich_help_panel=SAMPLING,
            show_default="a new one each time",
        ),
    ] = None
    repetition_penalty: Annotated[
        float,
        typer.Option(
            metavar="X", help="Make seen tokens less likely; 1 is off.", rich_help_panel=SAMPLING
        ),
    ] = 1.0
    presence_penalty: Annotated[
        float,
        typer.Option(
            metavar="X",
            help="Subtract this from the logits of seen tokens; 0 is off.",
            rich_help_panel=SAMPLING,
        ),
    ] = 0.0
    frequency_penalty: Annotated[
        float,
        typer.Option(
            metavar="X",
            help="Subtract this for each time a token was seen; 0 is off.",
            rich_help_panel=SAMPLING,
        ),
    ] = 0.0
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID=X",
            help="Add X to the logit of a token id, -inf forbids it; may be repeated.",
            rich_help_panel=SAMPLING,
        ),
    ] = None

    def params(self) -> SamplingParams:
        """Raises SamplingError, naming the field, its value and what it may be."""
        return SamplingParams(
            temperature=self.temp,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=dict(map(_bias, self.logit_bias or ())),
            seed=self.seed,
            max_tokens=self.max_tokens,
            stop=tuple(self.stop or ()),
            law=self.law,
        )

    def messages(self, prompt: str) -> list[Message]:
        """The conversation of one question."""
        system = [Message("system", self.system)] if self.system else []
        return [*system, Message("user", prompt)]


def takes_request(verb: Callable[Concatenate[Request, _More], None]) -> Callable[..., None]:
    """The verb with an option for each field of Request in place of its first parameter."""
    names = [field.name for field in fields(Request)]

    @functools.wraps(verb)
    def with_options(**given: object) -> None:
        wanted = {name: given.pop(name) for name in names}
        verb(Request(**wanted), **given)  # type: ignore[arg-type, call-arg]  # Typer checked them

    own = list(inspect.signature(verb, eval_str=True).parameters.values())[1:]
    hints = get_type_hints(Request, include_extras=True)
    shared = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(Request)
    ]
    mine = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    with_options.__signature__ = inspect.Signature([*mine, *shared])  # type: ignore[attr-defined]
    return with_options


def _bias(text: str) -> tuple[int, float]:
    token_id, equals, bias = text.partition("=")
    try:
        if equals:
            return int(token_id), float(bias)
    except ValueError:
        pass
    raise SamplingError(f"--logit-bias is {text!r}, but must be ID=NUMBER, such as 198=-inf.")
