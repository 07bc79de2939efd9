"""`mtplx models`: what is here, and bringing and removing it."""

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from mtplx.cli.choose import ask, complete_model, megabytes
from mtplx.cli.model import places_of, showing_progress
from mtplx.cli.output import is_terminal, notice, write, write_json
from mtplx.errors import ModelNotFoundError, MtplxError, UsageError

if TYPE_CHECKING:
    from mtplx.loading.local_models import LocalModel

Name = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="An alias, a Hugging Face id (owner/name, owner/name/FILE.gguf, owner/name@REVISION) "
        "or a path.",
        autocompletion=complete_model,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def models() -> None:
    """List the models on this machine, fetch them, remove them.

    Models lie in MTPLX's own cache, in the Hugging Face cache, which is shared with other programs,
    and in the folders that the settings name. Nothing is fetched that is in one of them.
    """


def list_models(json: Json = False) -> None:
    """List every model on this machine, wherever it came from."""
    from mtplx.config import read_config
    from mtplx.loading.local_models import local_models

    config = read_config()
    found = local_models(places_of(config))
    heads = [_head(model) for model in found]
    if json:
        listed = [{**asdict(model), "head": head} for model, head in zip(found, heads, strict=True)]
        write_json({"models": listed})
        return
    if not found:
        write("There is no model on this machine yet. `mtplx models pull smollm2` fetches one.\n")
        return
    rows = [("NAME", "KIND", "SIZE", "HEAD", "WHERE")]
    for model, head in zip(found, heads, strict=True):
        place = model.place + (f" ({model.problem})" if model.problem else "")
        size = megabytes(model.num_bytes)
        rows.append((model.name, model.kind, size, "yes" if head else "-", place))
    write(_table(rows))


def pull(
    model: Name,
    update: Annotated[
        bool, typer.Option("--update", help="Take the hub's newest revision, not the one here.")
    ] = False,
) -> None:
    """Fetch a model, or what is missing of it, and check every byte.

    A download that was stopped goes on where it was. A model that is here already is checked
    without the network, and what is damaged is fetched again.
    """
    from mtplx.config import read_config
    from mtplx.loading.pull import pull as bring

    with showing_progress() as progress:
        try:
            pulled = bring(model, places_of(read_config()), update=update, progress=progress)
        except KeyboardInterrupt:
            notice("Stopped. The same command goes on from here.")
            raise
    revision = f" at revision {pulled.revision[:12]}" if pulled.revision else ""
    files = f"{pulled.num_files} file{'s' * (pulled.num_files != 1)}"
    checked = (
        "every byte checked"
        if pulled.num_checked == pulled.num_files
        else f"{pulled.num_checked} of them checked against a hash"
    )
    size = megabytes(pulled.num_bytes)
    write(f"{model}{revision}: {files}, {size}, {checked}.\n{pulled.path}\n")


def rm(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL", help="What to remove.", autocompletion=complete_model),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove models that MTPLX fetched.

    What other programs put into the Hugging Face cache, and files of your own, are left alone.
    """
    from mtplx.config import read_config
    from mtplx.loading.remove import removal_of

    places = places_of(read_config())
    removals = [(model, removal_of(model, places)) for model in models]
    if not yes and not is_terminal(sys.stdin):
        raise UsageError("Nobody is there to be asked. Give --yes to remove without a question.")
    for model, removal in removals:
        question = f"Remove {model} ({megabytes(removal.num_bytes)}, {removal.place})? [y/N] "
        if yes or (ask(question) or "").lower() in ("y", "yes"):
            write(f"Removed {model}: {megabytes(removal.run())} are free again.\n")
        else:
            write(f"Kept {model}.\n")


def path(model: Name) -> None:
    """Print where a model is; nothing is fetched."""
    from mtplx.config import read_config
    from mtplx.loading.resolve import locate

    found = locate(model, places=places_of(read_config()))
    if found is None:
        raise ModelNotFoundError(
            f"{model} is not on this machine. `mtplx models pull {model}` fetches it."
        )
    write(f"{found}\n")


SUBVERBS = {"list": list_models, "pull": pull, "rm": rm, "path": path}


def _head(model: "LocalModel") -> str | None:
    """The file of the head that loading would find for a model; None for none."""
    from mtplx.loading.find_head import find_head
    from mtplx.loading.fingerprint import fingerprint

    if model.problem is not None:
        return None
    try:
        own = model.path / "mtp.safetensors"
        found = own if own.is_file() else find_head(model.path, fingerprint(model.path))
    except (MtplxError, OSError):
        return None
    return None if found is None else str(found)


def _table(rows: list[tuple[str, str, str, str, str]]) -> str:
    from rich.cells import cell_len

    widths = [max(cell_len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            " " * (width - cell_len(text)) + text
            if column == 2
            else text.ljust(0) + " " * (width - cell_len(text))
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"
