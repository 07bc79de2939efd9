"""`mtplx config`: what is set, and where each value comes from."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtplx.cli.choose import complete_model
from mtplx.cli.output import notice, write, write_json
from mtplx.errors import ConfigError

if TYPE_CHECKING:
    from mtplx.cli.effective import Effective
    from mtplx.config import Config


def complete_key(incomplete: str) -> list[str]:
    """Names of settings for a shell to complete."""
    from mtplx.config import MODEL_SETTINGS, TOP_SETTINGS

    return [
        name for name in sorted({*TOP_SETTINGS, *MODEL_SETTINGS}) if name.startswith(incomplete)
    ]


Key = Annotated[
    str,
    typer.Argument(
        metavar="KEY",
        help="A setting, such as temperature, model, folders or aliases.NAME.",
        autocompletion=complete_key,
    ),
]
ForModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="MODEL",
        help="For this model alone.",
        autocompletion=complete_model,
    ),
]


def config() -> None:
    """Show and change settings, and say where each value comes from.

    They hold where no flag says otherwise, and are kept in a TOML file that can also be edited; its
    comments stay. Flags go before what is set for one model, that before what is set for all, and
    that before what the model recommends.
    """


def show(
    model: ForModel = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the settings file, or with --model every value that holds and where it comes from."""
    from mtplx.config import read_config

    if model is None:
        _show_file(read_config(), json=json)
        return
    from mtplx.cli.effective import known_settings

    effective = known_settings(model)
    if json:
        values = {
            name: {"value": value.value, "source": value.source}
            for name, value in effective.values.items()
        }
        path = None if effective.path is None else str(effective.path)
        write_json({"path": path, "values": values, "ignored": list(effective.ignored)})
    else:
        write(_as_text(model, effective))


def set_value(
    key: Key,
    values: Annotated[
        list[str], typer.Argument(metavar="VALUE", help="Its value; several make a list.")
    ],
    model: ForModel = None,
) -> None:
    """Set a value for all models, or with --model for one.

    A value that begins with - is given after --, as in: mtplx config set presence_penalty -- -0.5
    """
    from mtplx.config import config_path
    from mtplx.config_edit import set_setting, value_from

    keys, path = _keys(key, model), config_path()
    value = value_from(keys, values)
    set_setting(path, keys, value)
    notice(f"{_shown(keys)} = {value!r} ({path})")


def unset(key: Key, model: ForModel = None) -> None:
    """Take a value out again."""
    from mtplx.config import config_path
    from mtplx.config_edit import unset_setting

    keys, path = _keys(key, model), config_path()
    if not unset_setting(path, keys):
        raise ConfigError(f"{_shown(keys)} is not set in {path}.")
    notice(f"{_shown(keys)} is not set any more ({path})")


def path() -> None:
    """Print where the settings file is, or would be."""
    from mtplx.config import config_path

    write(f"{config_path()}\n")


SUBVERBS = {"show": show, "set": set_value, "unset": unset, "path": path}


def _keys(key: str, model: str | None) -> tuple[str, ...]:
    """Where in the file a key of the command line stands."""
    if model is not None:
        return ("models", model, key)
    table, dot, name = key.partition(".")
    if dot and table == "models":
        raise ConfigError("What is set for one model is set with --model MODEL.")
    return (table, name) if dot else (key,)


def _shown(keys: tuple[str, ...]) -> str:
    return f"{keys[2]} for {keys[1]}" if len(keys) == 3 else ".".join(keys)


def _show_file(config: "Config", *, json: bool) -> None:
    where = "no home folder, so no file" if config.path is None else str(config.path)
    content = _content(config.path)
    if json:
        write_json(
            {
                "path": where,
                "exists": content is not None,
                "model": config.model,
                "folders": list(map(str, config.folders)),
                "aliases": dict(config.aliases),
                "settings": dict(config.settings),
                "models": {name: dict(values) for name, values in config.models.items()},
            }
        )
        return
    write(f"# {where}{'' if content is not None else ' (not there yet)'}\n{content or ''}")


def _content(path: Path | None) -> str | None:
    if path is None or not path.is_file():
        return None
    return path.read_text("utf-8-sig").rstrip("\n") + "\n"


def _as_text(model: str, effective: "Effective") -> str:
    where = effective.path or "not on this machine, so what its files say is not known"
    rows = [(name, _written(value.value), value.source) for name, value in effective.values.items()]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [f"{model} ({where})", ""]
    lines += [
        f"{name:<{widths[0]}}  {value:<{widths[1]}}  {source}" for name, value, source in rows
    ]
    lines += [f"Not followed: {reason}" for reason in effective.ignored]
    return "\n".join(lines) + "\n"


def _written(value: object) -> str:
    if value is None or value == ():
        return "-"
    if isinstance(value, tuple):
        return " ".join(map(repr, value))
    return " ".join(str(value).split())
