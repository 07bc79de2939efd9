"""Changing one setting in the user's file, and nothing else: comments and order stay."""

import shutil
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mtplx.config import checked_config, checked_setting, parsed, setting_at
from mtplx.errors import ConfigError
from mtplx.files import accessing, locked, replacing
from mtplx.paths import ensure_dir


def value_from(keys: tuple[str, ...], words: Sequence[str]) -> object:
    """What words of a command line mean as the value at `keys`, ready to be written.

    A number or the like is written as in TOML; a text needs no quotes, and each word is an entry
    of a list. Raises ConfigError for a key that is none and a value that cannot be meant.
    """
    kind = setting_at(keys).kind
    if kind == "texts":
        value: object = list(words)
    elif len(words) != 1:
        raise ConfigError(f"{keys[-1]} takes one value, but there were {len(words)}.")
    else:
        value = words[0] if kind == "text" else _read(words[0])
    checked_setting(keys, value)
    return value


def _read(word: str) -> object:
    try:
        table = tomllib.loads(f"value = {word}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return word  # such as off; what cannot be meant is refused by the check that follows
    return table["value"] if len(table) == 1 else word


def set_setting(path: Path, keys: tuple[str, ...], value: object) -> None:
    """Put `value` at `keys`; the file and its folder are made where they are missing.

    Raises ConfigError, and leaves the file as it is, where the file or the value is wrong, and
    FileAccessError where it cannot be written.
    """
    checked_setting(keys, value)

    def put(table: Any) -> bool:
        import tomlkit

        for depth, name in enumerate(keys[:-1]):
            if name not in table:
                table[name] = tomlkit.table(is_super_table=depth + 2 < len(keys))
            table = table[name]
        table[keys[-1]] = value
        return True

    _edit(path, put)


def unset_setting(path: Path, keys: tuple[str, ...]) -> bool:
    """Take the setting at `keys` out; False where it was not set.

    Raises as `set_setting`.
    """
    setting_at(keys)

    def take(table: Any) -> bool:
        for name in keys[:-1]:
            table = table.get(name, {})
        return table.pop(keys[-1], None) is not None

    return _edit(path, take)


def _edit(path: Path, change: Callable[[Any], bool]) -> bool:
    """Change the file in one step, one process at a time; gives whether there was a change.

    change: does it to plain tables as to the document that keeps their form.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    ensure_dir(path.parent)
    with locked(path.with_name(f".{path.name}.lock"), lambda: None):
        content = _content(path)
        tables = parsed(content, path)
        checked_config(tables, path)  # a file that is wrong is not written over
        document = tomlkit.parse(content.decode("utf-8-sig"))
        if not change(tables):
            return False
        try:
            change(document)
            changed = tomlkit.dumps(document).encode()
        except (ValueError, TOMLKitError):  # forms that it does not change, such as {a = {}}
            changed = b""
        if not changed or parsed(changed, path) != tables:
            raise ConfigError(f"{path} cannot be changed without losing something; edit it there.")
        _write(path, changed)
    return True


def _content(path: Path) -> bytes:
    with accessing("read", path):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return b""


def _write(path: Path, content: bytes) -> None:
    real = path.resolve()  # a link to where somebody keeps such files stays one
    with replacing(real) as part:
        part.write_bytes(content)
        if real.exists():
            shutil.copymode(real, part)
