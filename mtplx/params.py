"""How a request wants its tokens chosen: the fields, what each may be, and what it means."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import TYPE_CHECKING, TypeAlias

from mtplx.errors import SamplingError

if TYPE_CHECKING:
    import mlx.core as mx

Processor: TypeAlias = "Callable[[mx.array, mx.array], mx.array]"
"""(token ids [T] int32, logits [1, V] float32) -> logits [1, V]: a function of its arguments.

It is called for every row that could become a token, after the prompt and everything that would
stand before that token, also where the row turns out not to be needed. Those made for mlx-lm fit.
"""

LAW_NAMES = ("block", "rejection", "coupled")
LOGPROB_SOURCES = ("model", "sampling")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when to stop.

    The defaults change nothing about the model's distribution but its temperature.

    temperature: 0 takes the most probable token, the lowest id of equally probable ones.
    top_k: keep the k most probable tokens; 0 keeps all, and so does more than there are.
    top_p: keep the fewest most probable tokens whose mass reaches this; 1 keeps all.
    min_p: keep tokens at least this probable relative to the most probable one; 0 keeps all.
    typical_p: keep the fewest tokens whose mass reaches this, those first whose surprise is nearest
        to the expected one; 1 keeps all (Meister et al., arXiv 2202.00666).
    xtc_probability: how often XTC acts; 0 is off. Where it does, only the least probable one is
        left of the tokens whose probability reaches xtc_threshold.
    repetition_penalty: divides the positive logits of seen tokens and multiplies the negative
        ones; 1 is off (Keskar et al., arXiv 1909.05858).
    presence_penalty, frequency_penalty: subtracted from the logits of seen tokens, once or as
        often as the token was seen; 0 is off.
    penalty_window: how many of the last tokens count as seen, prompt included; None is all.
    dry_multiplier: DRY makes a token less likely that would repeat an earlier passage: where the
        last n tokens stood before and it followed them, dry_multiplier * dry_base ** (n -
        dry_allowed_length) is subtracted from its logit, of the longest such n if that is at least
        dry_allowed_length, and never more than 1e9; 0 is off.
    dry_window: how many of the last tokens are searched, prompt included; None is all.
    dry_breakers: tokens whose text holds one of these are not part of any repeated passage.
    dry_breaker_ids: nor are these tokens.
    logit_bias: added to the logits of these token ids; -inf forbids a token.
    allowed_ids: the only tokens that may be drawn; None is all. An end token is not added.
    processors: functions that change the logits after bias and allowed tokens, in this order; see
        `Processor`. Each round that drafts then costs a further read of the device.
    seed: the same seed gives the same text; None takes a fresh one.
    max_tokens: stop after this many.
    stop, stop_ids: stop before any of these texts, at any of these tokens.
    law: the acceptance law of drafted tokens, one of `LAW_NAMES`.
    logprobs: give the log-probability of each token, and of so many most probable ones in its
        place; None gives none.
    logprobs_of: whose, one of `LOGPROB_SOURCES`: "model" before all warps and at temperature 1,
        "sampling" after all of them.

    Raises SamplingError, naming the field, its value and what it may be.
    """

    temperature: float = 0.7
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_window: int | None = None
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_window: int | None = None
    dry_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    dry_breaker_ids: tuple[int, ...] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_ids: tuple[int, ...] | None = None
    processors: "tuple[Processor, ...]" = ()
    seed: int | None = None
    max_tokens: int = 512
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    law: str = "block"
    logprobs: int | None = None
    logprobs_of: str = "model"

    def __post_init__(self) -> None:
        checked: dict[str, object] = {}
        for name, allowed in _NUMBERS.items():
            value = getattr(self, name)
            absent = value is None and allowed.optional
            checked[name] = None if absent else allowed.checked(name, value)
        checked["logit_bias"] = bias = _checked_bias(self.logit_bias)
        for name in ("stop", "dry_breakers"):
            checked[name] = _checked_texts(name, getattr(self, name))
        for name in ("stop_ids", "dry_breaker_ids"):
            checked[name] = _checked_ids(name, getattr(self, name))
        if self.allowed_ids is not None:
            checked["allowed_ids"] = _checked_allowed(self.allowed_ids, bias)
        checked["processors"] = _checked_processors(self.processors)
        for name, choices in (("law", LAW_NAMES), ("logprobs_of", LOGPROB_SOURCES)):
            if getattr(self, name) not in choices:
                raise _wrong(name, getattr(self, name), f"one of: {', '.join(choices)}")
        for name, value in checked.items():  # plain Python numbers from here on
            object.__setattr__(self, name, value)

    @property
    def draws_randomly(self) -> bool:
        """Whether two seeds can give two texts."""
        return self.temperature > 0

    def check_samples(self, n: int) -> None:
        """Raises SamplingError for a number of independent samples that cannot be meant."""
        _NUM_SAMPLES.checked("n", n)
        if n > 1 and not self.draws_randomly:
            raise SamplingError(
                f"n is {n}, but at temperature 0 all samples are the same. "
                "Ask for one, or set a temperature above 0."
            )

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
        return self.ranks_by_probability or self.typical_p < 1 or self.excludes_top_choices

    @property
    def ranks_by_probability(self) -> bool:
        """Whether the least probable tokens are removed."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @property
    def excludes_top_choices(self) -> bool:
        """Whether XTC is on."""
        return self.xtc_probability > 0

    @property
    def avoids_repetition(self) -> bool:
        """Whether DRY is on."""
        return self.dry_multiplier > 0


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


def _checked_texts(name: str, texts: object) -> tuple[str, ...]:
    for text in (listed := _items(name, texts)):
        if not isinstance(text, str) or not text:
            raise _wrong(f"a text in {name}", text, "a string that is not empty")
    return tuple(map(str, listed))


def _checked_ids(name: str, ids: object) -> tuple[float, ...]:
    return tuple(_TOKEN_ID.checked(f"a token id in {name}", id_) for id_ in _items(name, ids))


def _checked_allowed(ids: object, bias: Mapping[float, float]) -> tuple[float, ...]:
    allowed = _checked_ids("allowed_ids", ids)
    if all(bias.get(token_id) == -math.inf for token_id in allowed):
        raise _wrong("allowed_ids", ids, "None or token ids that logit_bias does not all forbid")
    return allowed


def _checked_processors(processors: object) -> tuple[object, ...]:
    for processor in (listed := _items("processors", processors)):
        if not callable(processor):
            raise _wrong("one of processors", processor, "a function of token ids and logits")
    return tuple(listed)


def _items(name: str, value: object) -> Sequence[object]:
    if not isinstance(value, tuple | list):
        raise _wrong(name, value, "a tuple")
    return value


def _wrong(name: str, value: object, allowed: str) -> SamplingError:
    return SamplingError(f"{name} is {value!r}, but must be {allowed}.")


_NUM_SAMPLES = _Allowed("a whole number of 1 or more", 1, math.inf, whole=True)
_HUGE = 1e9  # far from where float32 ends, whatever the warps multiply and add
_PENALTY = _Allowed("a number from -1e9 to 1e9 (0 is off)", -_HUGE, _HUGE)
_TOKEN_ID = _Allowed("a whole number of 0 or more", 0, 2**31 - 1, whole=True)
_BIAS = _Allowed("a number from -1e9 to 1e9, or -inf to forbid the token", -math.inf, _HUGE)
_NUMBERS = {
    "temperature": _Allowed("a number from 0 to 1e9", 0, _HUGE),
    "top_k": _Allowed("a whole number of 0 (off) or more", 0, math.inf, whole=True),
    "top_p": _Allowed("a number above 0 and at most 1 (off)", 0, 1, low_included=False),
    "min_p": _Allowed("a number from 0 (off) to 1", 0, 1),
    "typical_p": _Allowed("a number above 0 and at most 1 (off)", 0, 1, low_included=False),
    "xtc_probability": _Allowed("a number from 0 (off) to 1", 0, 1),
    "xtc_threshold": _Allowed("a number above 0 and at most 0.5", 0, 0.5, low_included=False),
    "repetition_penalty": _Allowed("a number from 1e-9 to 1e9 (1 is off)", 1 / _HUGE, _HUGE),
    "presence_penalty": _PENALTY,
    "frequency_penalty": _PENALTY,
    "penalty_window": _Allowed(
        "None or a whole number of 1 or more", 1, math.inf, whole=True, optional=True
    ),
    "dry_multiplier": _Allowed("a number from 0 (off) to 1e9", 0, _HUGE),
    "dry_base": _Allowed("a number from 1 to 1e9", 1, _HUGE),
    "dry_allowed_length": _Allowed("a whole number of 1 or more", 1, math.inf, whole=True),
    "dry_window": _Allowed(
        "None or a whole number of 1 or more", 1, math.inf, whole=True, optional=True
    ),
    "logprobs": _Allowed(
        "None or a whole number of 0 or more", 0, math.inf, whole=True, optional=True
    ),
    "seed": _Allowed(
        "None or a whole number from 0 to 2**64 - 1", 0, 2**64 - 1, whole=True, optional=True
    ),
    "max_tokens": _Allowed("a whole number of 1 or more", 1, math.inf, whole=True),
}
