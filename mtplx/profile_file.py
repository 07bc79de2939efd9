"""A profile as a TOML file: written for people, read strictly.

Raises ProfileError for a file that is no profile, naming the file and the place in it, and
FileAccessError for one that cannot be read or written.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mtplx.config import parsed
from mtplx.costs import CostCurve
from mtplx.errors import ConfigError, ProfileError, UsageError
from mtplx.files import accessing, write_atomically
from mtplx.paths import ensure_dir
from mtplx.profile import KEY_FIELDS, Choice, Interval, Profile, Trials, file_name

FORMAT = 1
REMEDY = "Make it anew with `mtplx tune --retune`, or move the file away."
_SPEEDS = ("ratio", "plain", "drafted")
_LARGEST_TILE = 8  # columns a SIMD-group, and SIMD-groups a threadgroup


def read_profile(path: Path) -> Profile:
    """The profile in a file."""
    with accessing("read", path):
        content = path.read_bytes()
    try:
        return _profile(parsed(content, path))
    except ConfigError as error:
        text = str(error).replace("Mend it there, or move the file away.", REMEDY)
        raise ProfileError(text) from error
    except _WrongError as error:
        raise ProfileError(f"{path} is no profile of this version: {error}. {REMEDY}") from error


def write_profile(profile: Profile, folder: Path) -> Path:
    """Put a profile into a folder, in place of the one with the same key; gives its path."""
    path = ensure_dir(folder) / file_name(profile)
    write_atomically(path, as_toml(profile).encode())
    return path


def as_toml(profile: Profile) -> str:
    """The text of a profile's file."""
    import tomlkit

    document = tomlkit.document()
    document.add(
        tomlkit.comment(f"How deep to draft with {profile.model}, measured by `mtplx tune`.")
    )
    document.add(
        tomlkit.comment("Speeds are tokens per second as [median, low, high], times are seconds.")
    )
    document["format"] = FORMAT
    document["notes"] = list(profile.notes)
    if profile.window is not None:
        document["draft_window"] = profile.window
    document["key"] = dict(profile.key)
    document["measured"] = _plain(profile.measured)
    document["choice"] = [_choice_table(choice) for choice in profile.choices]
    document["costs"] = _table(
        "of a round: verify_s has a row for each context, with 1, 2, ... rows of tokens",
        _costs(profile.curve),
    )
    document["acceptance"] = _table(
        "by place in a draft, where all places before were accepted",
        {kind or "any": [_short(rate) for rate in rates] for kind, rates in profile.priors.items()},
    )
    if profile.tiles:
        document["tiles"] = _table(
            "of kernels for few rows: columns of a SIMD-group, and SIMD-groups",
            {name: list(sizes) for name, sizes in profile.tiles.items()},
        )
    document["trials"] = _table(
        "every reply that was measured, in its order; warm-up counts for nothing",
        {"columns": list(profile.trials.columns), "rows": _lines(profile.trials.rows)},
    )
    return tomlkit.dumps(document)


def _table(comment: str, values: Mapping[str, Any]) -> Any:
    """What is behind a name in brackets, and the comment beside that."""
    import tomlkit

    table = tomlkit.table()
    table.comment(comment)
    for name, value in values.items():
        table[name] = value
    return table


def _costs(curve: CostCurve) -> dict[str, Any]:
    return {
        "contexts": list(curve.contexts),
        "verify_s": _lines(curve.verify_s),
        "draft_s": [_short(s) for s in curve.draft_s],
        "fixed_s": _short(curve.fixed_s),
    }


def _lines(rows: Iterable[Iterable[Any]]) -> Any:
    """Each row on a line of its own."""
    import tomlkit

    array = tomlkit.array()
    for row in rows:
        array.append([_short(value) for value in row])
    return array.multiline(True)


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _plain(values: Mapping[str, object]) -> dict[str, Any]:
    return {name: _short(value) for name, value in values.items() if value is not None}


def _choice_table(choice: Choice) -> dict[str, Any]:
    speeds = {name: getattr(choice, name) for name in _SPEEDS}
    return {
        "class": choice.kind,
        "context": choice.context,
        "depth": choice.depth,
        "tried": choice.tried,
        **{
            name: [_short(x) for x in (span.median, span.low, span.high)]
            for name, span in speeds.items()
            if span is not None
        },
        "why": choice.why,
    }


class _WrongError(Exception):
    """A place in a file that is not as it should be."""


def _profile(tables: Mapping[str, object]) -> Profile:
    parts = _Table(tables, "")
    if parts.take("format", int) != FORMAT:
        raise _WrongError(f"format is {tables['format']!r}, and this version knows {FORMAT}")
    key = parts.table("key")
    costs, acceptance = parts.table("costs"), parts.table("acceptance")
    trials, measured = parts.table("trials"), parts.table("measured")
    choices = tuple(_choice(table) for table in parts.tables("choice"))
    if not choices:
        raise _WrongError("choice is empty, but must have one or more")
    notes = tuple(_each(parts.take("notes", list), str, "notes"))
    window = parts.take("draft_window", int) if "draft_window" in parts.values else None
    if window is not None and window < 1:
        raise _WrongError(f"draft_window is {window}, but must be 1 or more")
    tiles = _tiles(parts.table("tiles")) if "tiles" in parts.values else {}
    parts.end()
    found_key = {name: key.take(name, str, int, float) for name in KEY_FIELDS}
    key.end()
    measured.require("date", "model")
    return Profile(
        key=found_key,
        measured=dict(measured.values),
        choices=choices,
        curve=_curve(costs),
        priors=_priors(acceptance),
        window=window,
        tiles=tiles,
        notes=notes,
        trials=_trials(trials),
    )


def _curve(costs: "_Table") -> CostCurve:
    contexts = _each(costs.take("contexts", list), int, "costs.contexts")
    rows = _each(costs.take("verify_s", list), list, "costs.verify_s")
    verify_s = tuple(tuple(_each(row, float, "costs.verify_s")) for row in rows)
    draft_s = tuple(_each(costs.take("draft_s", list), float, "costs.draft_s"))
    fixed_s = costs.take("fixed_s", float)
    costs.end()
    try:
        return CostCurve(tuple(contexts), verify_s, draft_s, fixed_s)
    except UsageError as error:
        raise _WrongError(str(error).rstrip(".")) from error


def _priors(acceptance: "_Table") -> dict[str, tuple[float, ...]]:
    priors = {}
    for name in list(acceptance.values):
        rates = tuple(_each(acceptance.take(name, list), float, f"acceptance.{name}"))
        if not rates or not all(0 <= rate <= 1 for rate in rates):
            raise _WrongError(
                f"acceptance.{name} is {list(rates)}, but must be shares from 0 to 1, one or more"
            )
        priors["" if name == "any" else name] = rates
    return priors


def _tiles(table: "_Table") -> dict[str, tuple[int, int]]:
    tiles = {}
    for name in list(table.values):
        sizes = _each(table.take(name, list), int, f"tiles.{name}")
        if len(sizes) != 2 or not all(1 <= size <= _LARGEST_TILE for size in sizes):
            raise _WrongError(
                f"tiles.{name} is {sizes}, but must be two numbers from 1 to {_LARGEST_TILE}"
            )
        tiles[name] = (sizes[0], sizes[1])
    return tiles


def _choice(table: "_Table") -> Choice:
    spans = {name: _span(table, name) for name in _SPEEDS}
    choice = Choice(
        kind=table.take("class", str),
        context=table.take("context", int),
        depth=table.take("depth", int),
        tried=table.take("tried", int),
        why=table.take("why", str),
        **spans,
    )
    table.end()
    if choice.depth < 0 or choice.context < 1:
        raise _WrongError(f"a choice has depth {choice.depth} at context {choice.context}")
    return choice


def _span(table: "_Table", name: str) -> Interval | None:
    if name not in table.values:
        return None
    numbers = _each(table.take(name, list), float, f"choice.{name}")
    if len(numbers) != 3:
        raise _WrongError(f"choice.{name} has {len(numbers)} numbers in place of 3")
    return Interval(*numbers)


def _trials(table: "_Table") -> Trials:
    columns = tuple(_each(table.take("columns", list), str, "trials.columns"))
    rows = tuple(tuple(row) for row in _each(table.take("rows", list), list, "trials.rows"))
    table.end()
    for number, row in enumerate(rows, 1):
        if len(row) != len(columns):
            raise _WrongError(
                f"row {number} of trials has {len(row)} values for {len(columns)} columns"
            )
    return Trials(columns, rows)


class _Table:
    """A TOML table whose entries are taken one by one, so that what is left over shows."""

    def __init__(self, values: object, name: str) -> None:
        if not isinstance(values, dict):
            raise _WrongError(f"{name} is no table")
        self.values: dict[str, object] = dict(values)
        self._name = name

    def require(self, *names: str) -> None:
        for name in names:
            if name not in self.values:
                raise _WrongError(f"{self._path(name)} is missing")

    def take(self, name: str, *kinds: type) -> Any:
        self.require(name)
        return _checked(self.values.pop(name), kinds, self._path(name))

    def table(self, name: str) -> "_Table":
        return _Table(self.take(name, dict), self._path(name))

    def tables(self, name: str) -> "list[_Table]":
        return [_Table(each, name) for each in self.take(name, list)]

    def end(self) -> None:
        for name in self.values:
            raise _WrongError(f"{self._path(name)} is unknown")

    def _path(self, name: str) -> str:
        return f"{self._name}.{name}" if self._name else name


def _each(values: list[Any], kind: type, where: str) -> list[Any]:
    return [_checked(value, (kind,), f"an entry of {where}") for value in values]


def _checked(value: object, kinds: tuple[type, ...], where: str) -> Any:
    if float in kinds and int not in kinds and type(value) is int:
        value = float(value)
    if type(value) not in kinds:
        names = " or ".join(kind.__name__ for kind in kinds)
        raise _WrongError(f"{where} is {value!r:.60}, but must be {names}")
    if isinstance(value, float) and not abs(value) < float("inf"):
        raise _WrongError(f"{where} is {value}, but must be a finite number")
    return value
