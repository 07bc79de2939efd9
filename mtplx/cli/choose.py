"""Which model is meant where none is named."""

import re
import sys
from typing import TYPE_CHECKING

import typer

from mtplx.cli.output import is_terminal, notice

if TYPE_CHECKING:
    from mtplx.loading.local_models import LocalModel

DEFAULT_MODEL = "smollm2"


def chosen_model(
    context: typer.Context, parameter: typer.CallbackParam, value: str | None
) -> str | None:
    """The model of the settings file in place of the built-in one, for an option not given."""
    if context.resilient_parsing or parameter.name is None:
        return value
    if is_given(context, parameter.name):
        return value
    from mtplx.config import read_config

    return read_config().model or value


def is_given(context: typer.Context, name: str) -> bool:
    """Whether a parameter stands on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def pick_model(usual: str) -> str:
    """The model to talk with where the command line names none.

    usual: that of the settings file, or else the built-in one. Where the settings name none, and
    there are several on this machine and somebody at the terminal, they are offered. On a first
    run, one line tells of a better one.
    """
    from mtplx.cli.model import places_of
    from mtplx.config import read_config
    from mtplx.loading.local_models import local_models

    config = read_config()
    if config.model is not None:
        return usual
    places = places_of(config)
    found = [model for model in local_models(places) if model.problem is None]
    if not _somebody_is_there() or [model.name for model in found] == [usual]:
        return usual
    if not found:
        _tell_of_a_better_one(usual)
        return usual
    return _asked(found, usual)


def complete_model(incomplete: str) -> list[tuple[str, str]]:
    """Names of models for a shell to complete, with what they are."""
    from mtplx.cli.model import places_of
    from mtplx.config import read_config
    from mtplx.errors import MtplxError
    from mtplx.loading.catalogue import ALIASES
    from mtplx.loading.local_models import local_models

    try:
        places = places_of(read_config())
    except MtplxError:
        return []
    known = {model.name: model.kind for model in local_models(places)}
    known |= {name: f"alias for {target}" for name, target in places.aliases.items()}
    known |= {name: "alias" for name in ALIASES if name not in known}
    # Shells take other characters for signs of their own.
    plain = [name for name in sorted(known) if re.fullmatch(r"[\w./@+-]+", name)]
    return [(name, known[name]) for name in plain if name.startswith(incomplete)]


def _somebody_is_there() -> bool:
    return is_terminal(sys.stdin) and is_terminal(sys.stdout) and is_terminal(sys.stderr)


def _asked(found: "list[LocalModel]", usual: str) -> str:
    from mtplx.text.safe import printable

    what = {model.name: f"{model.kind}, {megabytes(model.num_bytes)}" for model in found}
    what.setdefault(usual, "to be fetched")
    names = list(what)
    default = names.index(usual) + 1
    notice("Several models can be used. Which one?")
    width = max(map(len, names))
    for number, name in enumerate(names, 1):
        notice(printable(f"{number:>4}  {name:<{width}}  {what[name]}"))
    notice("`mtplx config set model NAME` keeps one; --model names one for once.")
    while True:
        line = ask(f"Number [{default}]: ")
        if line is None:  # Ctrl-D leaves, as it does in the conversation
            raise typer.Exit
        answer = line or str(default)
        if answer in names:
            return answer
        if answer.isdecimal() and 1 <= int(answer) <= len(names):
            return names[int(answer) - 1]
        notice(f"{answer!r} is none of them. Give a number from 1 to {len(names)}.")


def _tell_of_a_better_one(usual: str) -> None:
    from mtplx.loading.suggest import suggestion

    better = suggestion()
    if better is not None:
        notice(f"{usual} is small, to begin with. {better}")


def ask(question: str) -> str | None:
    """What somebody types after a question on standard error; None at the end of input."""
    from mtplx.text.safe import printable

    sys.stderr.write(printable(question))
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        notice("")
        return None
    return line.strip()


def megabytes(num_bytes: int) -> str:
    """A size as people read it."""
    if num_bytes >= 1_000_000_000:
        return f"{num_bytes / 1e9:,.1f} GB"
    return f"{num_bytes / 1e6:,.1f} MB"
