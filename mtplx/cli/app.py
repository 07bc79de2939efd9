"""The root of the command line: what verbs there are, and what becomes of errors.

A verb is the function VERB in `mtplx.cli.VERB` (a hyphen is an underscore there), which is imported
when the verb is called. Its docstring begins with the help line below. Where that module has
SUBVERBS, a table of functions, the verb is a group of them and its function only documents it.
"""

import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from mtplx.cli.examples import epilog, exit_code_epilog
from mtplx.cli.output import abandon_stdout, complain, flush, is_terminal, notice, prepare_stdout
from mtplx.errors import MtplxError

VERBS = {
    "chat": "Talk with a model in the terminal.",
    "generate": "Answer one prompt, given or from standard input.",
    "demo": "Answer two prompts with drafting off and on, with the figures.",
    "bench": "Measure plain decoding and each draft depth on this machine.",
    "tune": "Measure how deep to draft here, and keep it where that pays.",
    "profile": "Show, carry and forget what `mtplx tune` has saved.",
    "inspect": "Say what a checkpoint holds and what memory it needs.",
    "convert": "Make an MLX checkpoint that keeps its MTP head.",
    "models": "List the models on this machine, fetch them, remove them.",
    "config": "Show and change settings, and say where each value comes from.",
    "doctor": "Look for what keeps MTPLX from running, or from running fast.",
    "train-head": "Train an MTP head for a model that has none.",
}
WITHOUT_MODEL = (
    "inspect",
    "convert",
    "models",
    "config",
    "doctor",
    "profile",
)  # verbs that need no word about a slow BLAS


COMPLETION = "_MTPLX_COMPLETE"  # how Typer's completion scripts ask


class Verb(TyperCommand):
    """Stands in for a verb in the list of verbs; only calling it imports it."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        assert self.name is not None
        command = verb_command(self.name)
        if isinstance(command, TyperGroup) and not args and not extra:
            args = ["--help"]
        context = command.make_context(info_name, args, parent, **extra)
        if not extra.get("resilient_parsing"):  # a shell that completes a line computes nothing
            _choose_blas(parent.params["blas"], self.name)
        return context


app = typer.Typer(
    rich_markup_mode=None,
    epilog=exit_code_epilog(),
    context_settings={"help_option_names": ["-h", "--help"]},
)


def verb_command(name: str) -> Any:
    """The command behind a verb's name, imported."""
    module = import_module(f"mtplx.cli.{name.replace('-', '_')}")
    documented = getattr(module, name.replace("-", "_"))
    verb = typer.Typer(add_completion=False, rich_markup_mode=None, epilog=epilog(name))
    subverbs = getattr(module, "SUBVERBS", None)
    if subverbs is None:
        verb.command(epilog=epilog(name))(documented)
        return typer.main.get_command(verb)
    verb.callback()(documented)
    for subverb, function in subverbs.items():
        verb.command(subverb, epilog=epilog(f"{name} {subverb}"))(function)
    return typer.main.get_command(verb)


def root_command() -> TyperGroup:
    """The root with its verbs, none of them imported."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    for name, line in VERBS.items():
        group.add_command(Verb(name, callback=None, help=line))
    return group


def run(arguments: list[str]) -> int:
    """Run a command line and give its exit code."""
    prepare_stdout()
    try:
        if COMPLETION in os.environ:  # a shell asks how a line can go on
            root_command().main(prog_name="mtplx")
        code = _invoke(root_command(), arguments)
        flush()
        return code
    except (typer.TyperException, MtplxError) as error:
        complain(str(error) if isinstance(error, MtplxError) else error.format_message())
        return error.exit_code
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "mlx":
            raise
        complain(f"MLX cannot be imported: {error}. `mtplx doctor` says why.")
        return 1
    except RuntimeError as error:
        if not str(error).startswith("[ring]"):
            raise
        complain(f"Another machine is gone: {error}. What it printed says why.")
        return 1
    except KeyboardInterrupt:
        if is_terminal(sys.stderr):
            notice("")
        return 130
    except BrokenPipeError:
        abandon_stdout()
        return 141


def _invoke(command: TyperGroup, arguments: list[str]) -> int:
    try:
        with command.make_context("mtplx", arguments) as context:
            command.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    return 0


def _show_version(wanted: bool) -> None:
    if wanted:
        import mtplx

        typer.echo(f"mtplx {mtplx.__version__}")
        raise typer.Exit


@app.callback()
def root(
    blas: Annotated[
        str,
        typer.Option(
            metavar="auto|mkl|openblas|mlx",
            help="What MLX multiplies with on Linux; mlx is its own, on one core.",
        ),
    ] = "auto",
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Say which this is."),
    ] = False,
) -> None:
    """Run language models with their own multi-token-prediction heads: exact, and faster.

    Start with `mtplx chat`. Each command tells its options with --help.
    """


def _choose_blas(choice: str, verb: str) -> None:
    """Load the BLAS while MLX is not imported yet, and say so where it is slow."""
    from mtplx.blas import preload

    blas = preload(choice)
    if blas.notice and choice == "auto" and verb not in WITHOUT_MODEL:
        notice(blas.notice)
