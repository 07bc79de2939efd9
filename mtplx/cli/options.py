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

from mtplx.cli.choose import DEFAULT_MODEL as DEFAULT_MODEL
from mtplx.cli.choose import chosen_model, complete_model, is_given
from mtplx.cli.sampling_options import SamplingOptions
from mtplx.draft_options import DRAFT_MODES, DraftOptions
from mtplx.params import LAW_NAMES, SamplingParams
from mtplx.text.template import Message

DRAFTING = "Drafting"
_More = ParamSpec("_More")


def parse_depth(text: str) -> int | None:
    """A draft depth from the command line: a number, "off" for 0, or "auto" for None."""
    if text in ("auto", "off"):
        return 0 if text == "off" else None
    try:
        return int(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is neither a number nor 'auto' or 'off'.") from error


Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        metavar="MODEL",
        help="A GGUF file, a folder of safetensors, a Hugging Face id or an alias.",
        callback=chosen_model,
        autocompletion=complete_model,
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
        metavar="auto|N|off",
        help="Tokens to draft per round; off is plain decoding. auto is what is expected to be "
        "fastest, round by round; with --seed it goes by the text and the profile, not the clock.",
        show_default="auto",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(SamplingOptions):
    """What a command line asks of a model. The annotations are the options.

    given: which fields stand on the command line; the others are open to the settings file and to
        what the model recommends.
    """

    model: Model = DEFAULT_MODEL
    head: Head = None
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What the model is told beforehand.")
    ] = None
    max_tokens: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="End the reply after this many tokens.",
            show_default="what the context leaves",
        ),
    ] = 512
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="End the reply before this text; may be repeated."),
    ] = None
    depth: Depth = None
    law: Annotated[
        str,
        typer.Option(
            metavar="LAW",
            help=f"How drafted tokens are accepted: {', '.join(LAW_NAMES)}. None changes the "
            "distribution; with coupled a seed gives the same text at any depth.",
        ),
    ] = "block"
    draft: Annotated[
        str,
        typer.Option(
            metavar="MODE",
            help=f"How drafts are made: {', '.join(DRAFT_MODES)}.",
            rich_help_panel=DRAFTING,
        ),
    ] = "auto"
    draft_temp: Annotated[
        float | None,
        typer.Option(
            metavar="T",
            help="Temperature of sampled drafts.",
            rich_help_panel=DRAFTING,
            show_default="0.85 of the text's",
        ),
    ] = None
    draft_stop: Annotated[
        float | None,
        typer.Option(
            metavar="P",
            help="End a draft before a token less likely than this to be accepted; 0 never does.",
            rich_help_panel=DRAFTING,
            show_default="0.1 on a CPU, 0 on a GPU",
        ),
    ] = None
    draft_window: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Tokens of the text that the head looks back over; 0 is all.",
            rich_help_panel=DRAFTING,
            show_default="as tuned, else 0",
        ),
    ] = None
    lookup: Annotated[
        bool,
        typer.Option(
            "--lookup/--no-lookup",
            help="Draft what followed when the last tokens stood in the text before.",
            rich_help_panel=DRAFTING,
        ),
    ] = True
    given: frozenset[str] = frozenset()

    def params(self) -> SamplingParams:
        """Raises SamplingError, naming the field, its value and what it may be."""
        return SamplingParams(
            **self.sampling(),
            max_tokens=self.max_tokens,
            stop=tuple(self.stop or ()),
            law=self.law,
        )

    def drafts(self) -> DraftOptions:
        """Raises UsageError, naming the field, its value and what it may be."""
        return DraftOptions(
            mode=self.draft,
            temperature=self.draft_temp,
            stop=self.draft_stop,
            window=self.draft_window,
            lookup=self.lookup,
        )

    def messages(self, prompt: str) -> list[Message]:
        """The conversation of one question."""
        system = [Message("system", self.system)] if self.system else []
        return [*system, Message("user", prompt)]


def takes_request(
    verb: Callable[Concatenate[Request, _More], None], *, without: tuple[str, ...] = ()
) -> Callable[..., None]:
    """The verb with an option for each field of Request in place of its first parameter.

    without: fields that stay as they are by default and have none.
    """
    options = [field for field in fields(Request) if field.name not in ("given", *without)]
    own = list(inspect.signature(verb, eval_str=True).parameters.values())[1:]
    takes_context = any(parameter.annotation is typer.Context for parameter in own)

    @functools.wraps(verb)
    def with_options(context: typer.Context, **given: object) -> None:
        wanted = {field.name: given.pop(field.name) for field in options}
        named = frozenset(name for name in wanted if is_given(context, name))
        more = {"context": context, **given} if takes_context else given
        # Typer checked them.
        verb(Request(**wanted, given=named), **more)  # type: ignore[arg-type, call-arg]

    hints = get_type_hints(Request, include_extras=True)
    shared = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in sorted(options, key=lambda f: f in fields(SamplingOptions))
    ]
    mine = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    if not takes_context:
        place = inspect.Parameter.KEYWORD_ONLY
        mine.append(inspect.Parameter("context", place, annotation=typer.Context))
    with_options.__signature__ = inspect.Signature([*mine, *shared])  # type: ignore[attr-defined]
    return with_options
