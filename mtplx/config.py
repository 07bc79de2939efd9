"""The user's settings: a TOML file that people edit, read strictly.

    model = "big"                # what is used where no model is named
    folders = ["~/models"]       # searched for models before anything is fetched
    temperature = 0.5            # for every model

    [aliases]
    big = "mlx-community/Qwen3-8B-4bit"

    [models.big]                 # for this model alone, by any name that leads to it
    temperature = 0.6
    system = "Answer briefly."

Every error names the file, and the line and column or the key.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from mtplx.errors import ConfigError, FileAccessError, SamplingError
from mtplx.files import accessing
from mtplx.params import SamplingParams
from mtplx.paths import config_dir

# Fields that are code, or say nothing without the vocabulary of one request.
_NOT_SETTINGS = {
    "allowed_ids",
    "dry_breaker_ids",
    "logit_bias",
    "logprobs",
    "logprobs_of",
    "processors",
    "stop_ids",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """What may stand at a key.

    kind: how it is written: "text", "texts" (a list) or "value" (a number or the like).
    check: (name, value) -> what is meant. Raises ConfigError and SamplingError.
    """

    kind: str
    check: Callable[[str, object], object]


@dataclass(frozen=True, slots=True)
class Config:
    """What the file says; empty where there is none.

    path: None for a user without a home folder.
    model: the one to use where none is named. folders: searched for models.
    aliases: names of the user's own for paths, hub ids and other aliases.
    settings: for every model; models: for one, by a name that leads to it.
    """

    path: Path | None = None
    model: str | None = None
    folders: tuple[Path, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    models: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


def config_path() -> Path:
    """Where the file is, or would be. Raises FileAccessError for a user without a home folder."""
    return config_dir() / "config.toml"


def read_config(path: Path | None = None) -> Config:
    """The settings at `path`, by default the user's own.

    Raises ConfigError for a file that is no TOML or holds what is no setting, and
    FileAccessError for one that cannot be read.
    """
    if path is None:
        try:
            path = config_path()
        except FileAccessError:  # nowhere to keep settings is no reason not to run
            return Config()
    with accessing("read", path):
        try:
            content = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return Config(path)
    return checked_config(parsed(content, path), path)


def parsed(content: bytes, path: Path) -> dict[str, object]:
    """The tables of a TOML file. Raises ConfigError with line and column."""
    remedy = "Mend it there, or move the file away."
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = _place(content[: error.start].decode("utf-8", "replace"))
        byte = f"byte 0x{content[error.start]:02x}"
        raise ConfigError(f"{path}, {place}: {byte} is not UTF-8 text. {remedy}") from error
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ConfigError(f"{path} nests too deeply. {remedy}") from error
    except tomllib.TOMLDecodeError as error:
        reason, _, where = str(error).removesuffix(")").rpartition(" (at ")
        place = where if where.startswith("line ") else _place(text)
        raise ConfigError(f"{path}, {place}: {reason}. {remedy}") from error


def checked_config(tables: Mapping[str, object], path: Path) -> Config:
    """The settings that parsed tables hold. Raises ConfigError, naming the key."""
    try:
        settings = {
            name: checked_setting((name,), value)
            for name, value in tables.items()
            if name not in ("model", "folders", "aliases", "models")
        }
        model = tables.get("model")
        folders = _texts("folders", tables.get("folders", []))
        return Config(
            path=path,
            model=None if model is None else _model("model", model),
            folders=tuple(map(_expanded, folders)),
            aliases={
                name: _alias(name, value)
                for name, value in _table("aliases", tables.get("aliases", {})).items()
            },
            settings=settings,
            models={
                name: {
                    key: checked_setting(("models", name, key), value)
                    for key, value in _table(f"models.{name}", table).items()
                }
                for name, table in _table("models", tables.get("models", {})).items()
            },
        )
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def checked_setting(keys: tuple[str, ...], value: object) -> object:
    """What the setting at `keys` means by `value`, as the rest of the program takes it.

    keys: ("temperature",), ("aliases", NAME) or ("models", NAME, "temperature").
    Raises ConfigError for a key that is none and a value that cannot be meant.
    """
    try:
        return setting_at(keys).check(keys[-1], value)
    except (ConfigError, SamplingError) as error:
        place = f"[models.{keys[1]}]: " if len(keys) == 3 else ""
        raise ConfigError(f"{place}{error}") from error


def setting_at(keys: tuple[str, ...]) -> Setting:
    """What may stand at `keys`. Raises ConfigError for a key that is none, with the nearest."""
    match keys:
        case ("aliases", _):
            return Setting("text", _alias)
        case (name,):
            known, other, place = TOP_SETTINGS, MODEL_SETTINGS, "under [models.NAME]"
        case ("models", _, name):
            known, other, place = MODEL_SETTINGS, TOP_SETTINGS, "at the top of the file"
        case _:
            raise ConfigError(_unknown(".".join(keys), TOP_SETTINGS))
    if name in known:
        return known[name]
    if name in other:
        raise ConfigError(f"The setting {name!r} has to stand {place}.")
    raise ConfigError(_unknown(name, known))


def _unknown(name: str, known: Iterable[str]) -> str:
    names = [*known, *(["aliases", "models"] if "folders" in known else [])]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(sorted(names))}."
    return f"There is no setting {name!r}. {hint}"


def _sampling(name: str, value: object) -> object:
    return getattr(SamplingParams(**{name: value}), name)  # type: ignore[arg-type]  # checked there


def _depth(name: str, value: object) -> int | str:
    from mtplx.depth import MAX_DEPTH

    if value in ("auto", "off"):
        return 0 if value == "off" else "auto"
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_DEPTH:
        raise ConfigError(
            f"{name} is {value!r}, but must be a whole number from 0 to {MAX_DEPTH}, "
            '"auto" or "off".'
        )
    return value


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{name} is {value!r}, but must be a text that is not empty.")
    return value


def _texts(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{name} is {value!r}, but must be a list of texts.")
    return tuple(_text(f"an entry of {name}", entry) for entry in value)


def _model(name: str, value: object) -> str:
    if isinstance(value, dict):
        raise ConfigError("What is set for one model has to stand under [models.NAME].")
    return _text(name, value)


def _alias(name: str, value: object) -> str:
    if not re.fullmatch(r"[^\s/~.\\-][^\s/\\]*", name):
        raise ConfigError(
            f"{name!r} cannot be an alias: it has to be one word without a slash, and begin with "
            "a letter or digit."
        )
    return _text(f"the alias {name}", value)


def _table(name: str, value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ConfigError(f"{name} is {value!r}, but must be a table: [{name}] and its keys below.")
    return value


def _expanded(folder: str) -> Path:
    try:
        return Path(folder).expanduser()
    except RuntimeError:  # ~ of a user who has no home
        return Path(folder)


def _place(text: str) -> str:
    lines = text.split("\n")
    return f"line {len(lines)}, column {len(lines[-1]) + 1}"


def _kind(default: object) -> str:
    if isinstance(default, tuple):
        return "texts"
    return "text" if isinstance(default, str) else "value"


_COMMON = {
    **{
        f.name: Setting(_kind(f.default), _sampling)
        for f in fields(SamplingParams)
        if f.name not in _NOT_SETTINGS
    },
    "depth": Setting("value", _depth),
    "system": Setting("text", _text),
}
TOP_SETTINGS = {**_COMMON, "model": Setting("text", _model), "folders": Setting("texts", _texts)}
MODEL_SETTINGS = {**_COMMON, "head": Setting("text", _text)}
