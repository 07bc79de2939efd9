"""How the replies of a conversation are made, and the same as plain values for a file."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import get_args

from mtplx.draft_options import DraftOptions
from mtplx.errors import UsageError
from mtplx.params import SamplingParams

WHEN_FULL = ("stop", "drop")
_TEXTS = frozenset({"inf", "-inf"})  # numbers that JSON does not have


@dataclass(frozen=True, slots=True)
class Settings:
    """What a command changes takes effect with the next reply.

    params: its seed may be None: each conversation then takes a fresh one.
    depth: tokens drafted per round; None is what is expected to be fastest, round by round.
    drafts: whether to draft at all, where there is something to draft with. draft: how.
    system: what the model is told beforehand; None is the chat template's own.
    thinks: whether the template is told to have the model think; None leaves it to the template.
    shows_thinking: whether what the model thinks is shown, or only how long it took.
    context: tokens that prompt and reply may have; None is what the model and this machine hold.
    when_full: "stop" refuses a message that does not fit, "drop" leaves out the oldest turns.

    Raises UsageError, naming the field, its value and what it may be.
    """

    params: SamplingParams = field(default_factory=SamplingParams)
    depth: int | None = None
    drafts: bool = True
    draft: DraftOptions = field(default_factory=DraftOptions)
    system: str | None = None
    thinks: bool | None = None
    shows_thinking: bool = True
    context: int | None = None
    when_full: str = "stop"

    def __post_init__(self) -> None:
        for name, value, least in (("depth", self.depth, 1), ("context", self.context, 2)):
            if value is not None and not (isinstance(value, int) and value >= least):
                raise UsageError(f"The {name} is {value!r}, but must be {least} or more.")
        if not isinstance(self.system, str | None):
            raise UsageError(f"The system prompt is {self.system!r}, but must be a text.")
        if self.when_full not in WHEN_FULL:
            raise UsageError(
                f"What to do when the context is full is {self.when_full!r}, but must be one of: "
                f"{', '.join(WHEN_FULL)}."
            )


def settings_to_plain(settings: Settings) -> dict[str, object]:
    """Everything that JSON can hold; functions among the sampling fields are left out."""
    params = {
        name: _to_plain(value)
        for name in _names(SamplingParams)
        if not _has_code(value := getattr(settings.params, name))
    }
    own = {name: getattr(settings, name) for name in _names(Settings)}
    return {**own, "params": params, "draft": asdict(settings.draft)}


def settings_from_plain(plain: Mapping[str, object]) -> Settings:
    """The settings that `settings_to_plain` gave.

    Raises UsageError for what is no setting, as one of a later version.
    """
    params, draft = (_known(plain.get(name), kind) for name, kind in _PARTS.items())
    defaults = _plain_defaults()
    values = {name: _from_plain(value, defaults[name]) for name, value in params.items()}
    parts = {"params": SamplingParams(**values), "draft": DraftOptions(**draft)}  # type: ignore[arg-type]  # checked there
    return Settings(**{**_known(plain, Settings), **parts})  # type: ignore[arg-type]  # checked there


def sampling_fields() -> tuple[str, ...]:
    """The names of all sampling fields that text can set."""
    return tuple(name for name, value in _plain_defaults().items() if not _has_code(value))


def holds_texts(name: str) -> bool:
    """Whether a sampling field is a sequence of texts."""
    return any(f.name == name and get_args(f.type)[:1] == (str,) for f in fields(SamplingParams))


def sampling_default(name: str) -> object:
    """A sampling field as it is when nobody sets it."""
    return _plain_defaults()[name]


_PARTS = {"params": SamplingParams, "draft": DraftOptions}


def _known(given: object, record: type) -> Mapping[str, object]:
    """Fields of a record, all of which it has."""
    if not isinstance(given, Mapping):
        raise UsageError(f"Settings have no {record.__name__}.")
    for name in given:
        if name not in _names(record):
            raise UsageError(f"There is no field {name!r} in {record.__name__} of this version.")
    return given


def _names(record: type) -> list[str]:
    return [f.name for f in fields(record)]


def _plain_defaults() -> dict[str, object]:
    usual = SamplingParams()
    return {name: getattr(usual, name) for name in _names(SamplingParams)}


def _has_code(value: object) -> bool:
    return isinstance(value, tuple | list) and any(map(callable, value))


def _to_plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_to_plain(item) for item in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _from_plain(value: object, default: object) -> object:
    if isinstance(value, Mapping):
        return {_number(key): _number(item) for key, item in value.items()}
    if isinstance(value, list):
        return tuple(value)
    return _number(value) if isinstance(default, float) else value


def _number(value: object) -> object:
    if isinstance(value, str):
        return float(value) if value in _TEXTS else int(value) if value.isdecimal() else value
    return value
