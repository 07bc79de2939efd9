"""How a request wants its tokens chosen: the fields, what each may be, and what it means."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real

from mtplx.errors import SamplingError

LAW_NAMES = ("rejection",)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when to stop.

    The defaults change nothing about the model's distribution but its temperature.

    temperature: 0 takes the most probable token, the lowest id of equally probable ones.
    top_k: keep the k most probable tokens; 0 keeps all, and so does more than there are.
    top_p: keep the fewest most probable tokens whose mass reaches this; 1 keeps all.
    min_p: keep tokens at least this probable relative to the most probable one; 0 keeps all.
    repetition_penalty: divides the positive logits of seen tokens and multiplies the negative
        ones; 1 is off (Keskar et al., arXiv 1909.05858).
    presence_penalty, frequency_penalty: subtracted from the logits of seen tokens, once or as
        often as the token was seen; 0 is off.
    penalty_window: how many of the last tokens count as seen, prompt included; None is all.
    logit_bias: added to the logits of these token ids; -inf forbids a token.
    seed: the same seed gives the same text; None takes a fresh one.
    max_tokens: stop after this many.
    stop, stop_ids: stop before any of these texts, at any of these tokens.
    law: the acceptance law of drafted tokens, one of `LAW_NAMES`.

    Raises SamplingError, naming the field, its value and what it may be.
    """

    temperature: float = 0.7
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_window: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int = 512
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    law: str = "rejection"

    def __post_init__(self) -> None:
        checked: dict[str, object] = {}
        for name, allowed in _NUMBERS.items():
            value = getattr(self, name)
            absent = value is None and allowed.optional
            checked[name] = None if absent else allowed.checked(name, value)
        checked["logit_bias"] = _checked_bias(self.logit_bias)
        checked["stop"] = tuple(_checked_text(text) for text in _items("stop", self.stop))
        checked["stop_ids"] = tuple(
            _TOKEN_ID.checked("a token id in stop_ids", token_id)
            for token_id in _items("stop_ids", self.stop_ids)
        )
        if self.law not in LAW_NAMES:
            raise _wrong("law", self.law, f"one of: {', '.join(LAW_NAMES)}")
        for name, value in checked.items():  # plain Python numbers from here on
            object.__setattr__(self, name, value)

    @property
    def draws_randomly(self) -> bool:
        """Whether two seeds can give two texts."""
        return self.temperature > 0

    @property
    def penalises(self) -> bool:
        """Whether the distribution depends on which tokens were seen."""
        return (
            self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
        )

    @property
    def filters(self) -> bool:
        """Whether tokens are removed for being improbable."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0


@dataclass(frozen=True, slots=True)
class _Allowed:
    """What a number may be: from low to high, NaN never."""

    text: str
    low: float
    high: float
    low_included: bool = True
    whole: bool = False
    optional: bool = False

    def checked(self, name: str, value: object) -> float:
        """The value as a plain int or float, also where it came from numpy."""
        if isinstance(value, bool) or not isinstance(value, Integral if self.whole else Real):
            raise _wrong(name, value, self.text)
        number = int(value) if isinstance(value, Integral) else float(value)
        high_enough = number >= self.low if self.low_included else number > self.low
        if not (high_enough and number <= self.high):
            raise _wrong(name, value, self.text)
        return number if self.whole else float(number)


def _checked_bias(bias: object) -> dict[float, float]:
    if not isinstance(bias, Mapping):
        raise _wrong("logit_bias", bias, "a mapping from token ids to numbers")
    return {
        _TOKEN_ID.checked("a token id in logit_bias", token_id): _BIAS.checked(
            f"logit_bias[{token_id!r}]", value
        )
        for token_id, value in bias.items()
    }


def _checked_text(text: object) -> str:
    if not isinstance(text, str) or not text:
        raise _wrong("a text in stop", text, "a string that is not empty")
    return text


def _items(name: str, value: object) -> Sequence[object]:
    if not isinstance(value, tuple | list):
        raise _wrong(name, value, "a tuple")
    return value


def _wrong(name: str, value: object, allowed: str) -> SamplingError:
    return SamplingError(f"{name} is {value!r}, but must be {allowed}.")


_HUGE = 1e9  # far from where float32 ends, whatever the warps multiply and add
_PENALTY = _Allowed("a number from -1e9 to 1e9 (0 is off)", -_HUGE, _HUGE)
_TOKEN_ID = _Allowed("a whole number of 0 or more", 0, 2**31 - 1, whole=True)
_BIAS = _Allowed("a number from -1e9 to 1e9, or -inf to forbid the token", -math.inf, _HUGE)
_NUMBERS = {
    "temperature": _Allowed("a number from 0 to 1e9", 0, _HUGE),
    "top_k": _Allowed("a whole number of 0 (off) or more", 0, math.inf, whole=True),
    "top_p": _Allowed("a number above 0 and at most 1 (off)", 0, 1, low_included=False),
    "min_p": _Allowed("a number from 0 (off) to 1", 0, 1),
    "repetition_penalty": _Allowed("a number from 1e-9 to 1e9 (1 is off)", 1 / _HUGE, _HUGE),
    "presence_penalty": _PENALTY,
    "frequency_penalty": _PENALTY,
    "penalty_window": _Allowed(
        "None or a whole number of 1 or more", 1, math.inf, whole=True, optional=True
    ),
    "seed": _Allowed(
        "None or a whole number from 0 to 2**64 - 1", 0, 2**64 - 1, whole=True, optional=True
    ),
    "max_tokens": _Allowed("a whole number of 1 or more", 1, math.inf, whole=True),
}
