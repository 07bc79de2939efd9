"""`mtplx profile`: the tuned profiles on this machine."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtplx.cli.output import notice, write, write_json
from mtplx.errors import MtplxError, ProfileError, UsageError

if TYPE_CHECKING:
    from mtplx.profile import Profile


def complete_name(incomplete: str) -> list[str]:
    """Names of profiles for a shell to complete."""
    try:
        return [path.stem for path in _files() if path.stem.startswith(incomplete)]
    except MtplxError:
        return []


Name = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]",
        help="A profile's name or its beginning; not needed where there is one.",
        autocompletion=complete_name,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def profile() -> None:
    """Show, carry and forget what `mtplx tune` has saved.

    A profile holds for one model on one machine with the software that it was measured with; where
    any of that has changed it is not used, and stays until it is forgotten.
    """


def list_all(json: Json = False) -> None:
    """List the profiles, and what keeps each from being used here."""
    entries = [_entry(path) for path in _files()]
    if json:
        write_json({"profiles": entries})
        return
    if not entries:
        notice("There are no profiles. `mtplx tune` measures and saves one where drafting pays.")
    for entry in entries:
        write(f"{entry['name']}\n    {entry['says']}\n")


def show(
    name: Name = None,
    json: Json = False,
    chart: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the speeds into a .svg or .png file."),
    ] = None,
) -> None:
    """Show what a profile says: the best depths, speeds, costs and acceptance."""
    path, found = _read(name)
    if chart is not None:
        from mtplx.tuner.chart import write_chart

        write_chart(found, chart)
    if json:
        write_json({"name": path.stem, "path": str(path), **asdict(found)})
        return
    write("\n".join(_as_text(found)) + "\n")


def export(
    name: Name = None,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Where to; else standard output.")
    ] = None,
) -> None:
    """Write a profile to a file or to standard output, to take it to another place."""
    from mtplx.files import write_atomically
    from mtplx.profile_file import as_toml

    _, found = _read(name)
    if file is None:
        write(as_toml(found))
        return
    write_atomically(file, as_toml(found).encode())
    notice(f"Written: {file}")


def import_file(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="What `mtplx profile export` wrote.")
    ],
) -> None:
    """Take a profile in; one with the same key is replaced."""
    from mtplx.profile import profiles_dir
    from mtplx.profile_file import read_profile, write_profile

    found = read_profile(file)
    path = write_profile(found, profiles_dir())
    notice(f"Taken in: {path.stem}. {_standing(found)}")


def forget(
    name: Name = None,
    all_of_them: Annotated[bool, typer.Option("--all", help="Forget every profile.")] = False,
) -> None:
    """Remove a profile; drafting then goes by what usually pays, and by what it finds out."""
    from mtplx.files import accessing

    if all_of_them and name is not None:
        raise UsageError("Give a name or --all, not both.")
    for path in _files() if all_of_them else [_chosen(name)]:
        with accessing("remove", path):
            path.unlink()
        notice(f"Forgotten: {path.stem}")


SUBVERBS = {
    "list": list_all,
    "show": show,
    "export": export,
    "import": import_file,
    "forget": forget,
}


def _files() -> list[Path]:
    from mtplx.profile import profiles_dir

    return sorted(profiles_dir().glob("*.toml"))


def _chosen(name: str | None) -> Path:
    """The profile that is meant; also one that cannot be read, so that it can be forgotten."""
    files = _files()
    if not files:
        raise ProfileError("There are no profiles. `mtplx tune` saves one where drafting pays.")
    if name is None and len(files) == 1:
        return files[0]
    meant = [path for path in files if name is not None and path.stem.startswith(name)]
    exact = [path for path in meant if path.stem == name]
    if len(exact or meant) == 1:
        return (exact or meant)[0]
    told = ", ".join(path.stem for path in (meant or files))
    if meant or name is None:
        raise UsageError(f"Several profiles can be meant. Name one of: {told}.")
    raise UsageError(f"There is no profile {name!r}. There are: {told}.")


def _read(name: str | None) -> "tuple[Path, Profile]":
    from mtplx.profile_file import read_profile

    path = _chosen(name)
    return path, read_profile(path)


def _entry(path: Path) -> dict[str, object]:
    from mtplx.profile_file import read_profile

    try:
        found = read_profile(path)
    except MtplxError as error:
        return {"name": path.stem, "path": str(path), "problem": str(error), "says": str(error)}
    says = f"{found.model}, {found.date}: {_summary(found)} {_standing(found)}"
    return {
        "name": path.stem,
        "path": str(path),
        "model": found.model,
        "date": found.date,
        "fits": not _changes(found),
        "changes": _changes(found),
        "says": says,
    }


def _summary(found: "Profile") -> str:
    """The best depths in a few words."""
    by_kind: dict[str, list[str]] = {}
    for choice in found.choices:
        by_kind.setdefault(choice.kind, []).append(str(choice.depth or "plain"))
    return "; ".join(f"{kind} {', '.join(depths)}" for kind, depths in by_kind.items()) + "."


def _standing(found: "Profile") -> str:
    changes = _changes(found)
    if not changes:
        return "It fits this machine."
    return f"It is not used here: {'; '.join(changes)}."


def _changes(found: "Profile") -> list[str]:
    """What is otherwise on this machine; whether the model is the same shows when it is loaded."""
    from mtplx.loading.tuned import machine_key
    from mtplx.profile import differences

    return differences(found.key, machine_key())


def _as_text(found: "Profile") -> list[str]:
    from mtplx.tuner import report

    at = found.measured
    lines = [f"{found.model}, measured on {found.date}. {_standing(found)}", ""]
    lines += [*report.choice_lines(found), ""]
    lines += ["Tokens per second by depth:", *report.speed_lines(found), ""]
    lines += ["Milliseconds of a round:", *report.cost_lines(found), ""]
    lines += ["Drafted tokens accepted, by place:", *report.acceptance_lines(found), ""]
    lines.append("Measured on: " + ", ".join(f"{k} {v}" for k, v in found.key.items()))
    lines.append("Measured how: " + ", ".join(f"{k} {v}" for k, v in at.items()))
    return [*lines, *found.notes]
