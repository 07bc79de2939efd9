"""What a tuning run has found out about a model on a machine, and whether it still holds.

A profile is one TOML file in the user's settings folder, written by the tuner for people to read.
Its key says what it was measured on and with; where any of that has changed, it is not used.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mtplx.costs import CostCurve, Priors
from mtplx.paths import config_dir

# What a profile hangs on, and how that is called in a sentence.
KEY_FIELDS: Mapping[str, str] = {
    "chip": "the chip",
    "device": "the device",
    "cores": "the number of cores",
    "memory": "the memory",
    "os": "the system",
    "mlx": "MLX",
    "mtplx": "MTPLX",
    "blas": "the BLAS",
    "model": "the model's content",
    "head": "the MTP head",
    "quantisation": "the form of the weights",
    "kv": "the type of keys and values",
}


@dataclass(frozen=True, slots=True)
class Interval:
    """A median and where it may as well lie."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Choice:
    """What is best for a class of content at a context.

    depth: 0 is plain decoding. tried: the depth that promised most. ratio: its speed over plain
    decoding's, None where nothing promised to be better. plain, drafted: tokens per second.
    why: one line.
    """

    kind: str
    context: int
    depth: int
    tried: int
    ratio: Interval | None
    plain: Interval | None
    drafted: Interval | None
    why: str


@dataclass(frozen=True, slots=True)
class Trials:
    """Every measured reply, as a table."""

    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """key: by KEY_FIELDS. measured: when, how and under which conditions, for people.

    curve, priors: what the depth of a request is chosen by.
    window: tokens that the head had better look back over, None for all. tiles: of kernels for few
    rows, by packing, where others than the usual ones are faster: columns and SIMD-groups.
    notes: what else a person should know, such as that the machine was busy meanwhile.
    """

    key: Mapping[str, str | int | float]
    measured: Mapping[str, object]
    choices: tuple[Choice, ...]
    curve: CostCurve
    priors: Priors
    window: int | None = None
    tiles: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    trials: Trials = field(default_factory=lambda: Trials((), ()))

    @property
    def date(self) -> str:
        return str(self.measured["date"])[:10]

    @property
    def model(self) -> str:
        """The name under which the model was measured."""
        return str(self.measured["model"])


def profiles_dir() -> Path:
    """Where profiles are. Raises FileAccessError for a user without a home folder."""
    return config_dir() / "profiles"


def file_name(profile: Profile) -> str:
    """The profile's place among others: one for each model and each key."""
    slug = re.sub(r"[^a-z0-9]+", "-", Path(profile.model).stem.lower()).strip("-") or "model"
    return f"{slug[:40]}-{_mark(profile.key)}.toml"


def _mark(key: Mapping[str, str | int | float]) -> str:
    """16 hex digits: the first eight stand for the model."""
    text = "\n".join(f"{name}={key[name]}" for name in KEY_FIELDS)
    return model_mark(str(key["model"])) + hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def model_mark(fingerprint: str) -> str:
    """What the names of all of a model's profiles have in common."""
    return fingerprint[:8]


def exact_pattern(key: Mapping[str, str | int | float]) -> str:
    """What the file of a profile with this key is called, whatever the model was called."""
    return f"*-{_mark(key)}.toml"


def differences(
    then: Mapping[str, str | int | float], now: Mapping[str, str | int | float]
) -> list[str]:
    """What a profile was measured with and is otherwise now, in words."""
    return [
        f"{words} was {then[name]} and is {now[name]}"
        for name, words in KEY_FIELDS.items()
        if name in now and then[name] != now[name]
    ]


def why_not(profile: Profile, changes: Sequence[str]) -> str:
    """One line for a profile that is there and does not fit."""
    return (
        f"The profile of {profile.date} is not used: {'; '.join(changes)}. "
        "`mtplx tune` measures again."
    )
