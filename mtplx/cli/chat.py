"""`mtplx chat`: the terminal conversation."""

from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtplx.cli.choose import pick_model
from mtplx.cli.model import find_model, load_model
from mtplx.cli.options import Request, takes_request
from mtplx.errors import UsageError

if TYPE_CHECKING:
    from mtplx.chat.settings import Settings
    from mtplx.loading.load import LoadedModel
    from mtplx.loading.progress import Progress

Name = Annotated[
    str | None,
    typer.Argument(help="With --resume, which conversation; else the last one."),
]
Resume = Annotated[bool, typer.Option("--resume", "-r", help="Go on with an earlier conversation.")]
Size = Annotated[
    int | None,
    typer.Option(
        "--context",
        metavar="N",
        help="Tokens that prompt and reply may have together.",
        show_default="what the model and the memory hold",
    ),
]
WhenFull = Annotated[
    str,
    typer.Option(
        metavar="stop|drop",
        help="When the context is full: refuse messages, or leave the oldest turns out.",
    ),
]
Think = Annotated[
    str | None,
    typer.Option(
        metavar="on|off|hide",
        help="Whether the model thinks first, and shows it.",
        show_default="what its template does",
    ),
]
Save = Annotated[
    bool | None,
    typer.Option(
        "--save/--no-save",
        help="Keep new conversations in your data folder.",
        show_default="where somebody types",
    ),
]
# What an option is called among the settings, where it is called otherwise.
_NAMES = {
    "temp": ("temperature",),
    "size": ("context",),
    "depth": ("depth", "drafts"),
    "think": ("thinks", "shows_thinking"),
    "draft": ("mode",),
    "draft_temp": ("temperature",),
    "draft_stop": ("stop",),
    "draft_window": ("window",),
    "dry_breaker": ("dry_breakers",),
    "allow": ("allowed_ids",),
}
_DRAFT = frozenset({"draft", "draft_temp", "draft_stop", "draft_window", "lookup"})
_THINK = {None: (None, True), "on": (True, True), "off": (False, True), "hide": (None, False)}


@takes_request
def chat(
    request: Request,
    context: typer.Context,
    name: Name = None,
    resume: Resume = False,
    size: Size = None,
    when_full: WhenFull = "stop",
    think: Think = None,
    save: Save = None,
) -> None:
    """Talk with a model in the terminal.

    Ctrl-C stops a reply, Ctrl-D leaves, /help lists the commands. Where standard input is no
    terminal, each of its lines is a message.

    Ends with 0 when it is left, with 1 or 2 where it cannot begin or a line of standard input
    could not be answered, with 130 after Ctrl-C outside a reply of a script.
    """
    if name is not None and not resume:
        raise UsageError(
            f"mtplx chat takes no prompt, but there was {name!r}. Use `mtplx generate` for one "
            "answer, or --resume NAME to go on with a conversation."
        )
    settings = _settings(request, think, size, when_full)

    from mtplx.chat.archive import Archive
    from mtplx.chat.command import Opening
    from mtplx.chat.opening import Start
    from mtplx.chat.talk import talk
    from mtplx.paths import data_dir

    archive = Archive(data_dir() / "conversations")
    if resume:
        said = _said(context)
        saved, file = archive.open(name or archive.latest())
        model = request.model if "model" in said else saved.transcript.model
        first = Opening(model, saved.transcript, file, partial(_changed, said=said))
    else:
        if "model" not in request.given:
            request = replace(request, model=pick_model(request.model))
        first = Opening(request.model)
    open_model = partial(_open_model, request, settings)
    code = talk(Start(find_model, open_model, first, archive, keeps=save))
    if code:
        raise typer.Exit(code)


def _settings(request: Request, think: str | None, size: int | None, when_full: str) -> "Settings":
    """What the command line says, before it is known what the model wants."""
    from mtplx.chat.settings import Settings

    if think not in _THINK:
        raise UsageError(f"--think is {think!r}, but must be on, off or hide.")
    thinks, shows_thinking = _THINK[think]
    return Settings(
        params=request.params(),
        depth=request.depth or None,
        drafts=request.depth != 0,
        draft=request.drafts(),
        system=request.system,
        thinks=thinks,
        shows_thinking=shows_thinking,
        context=size,
        when_full=when_full,
    )


def _open_model(
    request: Request, settings: "Settings", model: str, progress: "Progress | None"
) -> "tuple[LoadedModel, Settings]":
    """A model, and the settings with what it wants where the command line says nothing."""
    from mtplx.cli.effective import effective_settings

    asked = request if model == request.model else replace(request, head=None)
    effective = effective_settings(model, asked, progress)
    loaded = load_model(model, effective.head, progress)
    depth = effective.depth(can_draft=loaded.can_draft or not settings.draft.uses_head)
    return loaded, replace(
        settings,
        params=effective.params,
        depth=depth or None,
        drafts=depth != 0,
        system=effective.system,
    )


def _said(context: typer.Context) -> frozenset[str]:
    """The options that the command line names."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return frozenset(
        name for name, at in sources.items() if at is not None and at.name == "COMMANDLINE"
    )


def _changed(saved: "Settings", fresh: "Settings", *, said: frozenset[str]) -> "Settings":
    """The settings of a conversation that goes on, with what the command line says otherwise."""

    def take(kept: Any, wanted: Any, options: frozenset[str]) -> Any:
        known = {f.name for f in fields(kept)}
        names = {name for option in options for name in _NAMES.get(option, (option,))}
        return replace(kept, **{name: getattr(wanted, name) for name in names & known})

    own: Settings = take(saved, fresh, said - _DRAFT)
    return replace(
        own,
        params=take(saved.params, fresh.params, said - _DRAFT),
        draft=take(saved.draft, fresh.draft, said & _DRAFT),
    )
