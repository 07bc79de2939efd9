from dataclasses import FrozenInstanceError, asdict
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from mtplx.errors import SamplingError
from mtplx.params import LAW_NAMES, SamplingParams
from mtplx.verification import LAWS

NAN, INF = float("nan"), float("inf")

WRONG = [
    *[("temperature", value) for value in (-0.1, NAN, INF, -INF, "0.7", True, None, 10**400)],
    *[("top_k", value) for value in (-1, 2.0, "5", False, NAN)],
    *[("top_p", value) for value in (0, -0.5, 1.01, NAN, "1", True)],
    *[("min_p", value) for value in (-0.1, 1.5, NAN, INF, True)],
    *[("typical_p", value) for value in (0, -0.5, 1.01, NAN, "1", True)],
    *[("xtc_probability", value) for value in (-0.1, 1.5, NAN, INF, True)],
    *[("xtc_threshold", value) for value in (0, -0.1, 0.51, NAN, "0.1")],
    *[("dry_multiplier", value) for value in (-0.1, NAN, INF, 1e10, True)],
    *[("dry_base", value) for value in (0.99, 0, NAN, INF, "2")],
    *[("dry_allowed_length", value) for value in (0, -1, 1.5, None, True)],
    *[("dry_window", value) for value in (0, -3, 1.5, "all", True)],
    *[("dry_breakers", value) for value in ("ab", ("",), (1,), None, {"a"})],
    *[("dry_breaker_ids", value) for value in (2, (-1,), (True,), ("2",), (2**31,), None)],
    *[("allowed_ids", value) for value in (2, (), (-1,), (True,), ("2",), (2**31,), {1})],
    *[("processors", value) for value in (abs, (1,), ("x",), None, {abs})],
    *[("logprobs", value) for value in (-1, 1.5, "5", True)],
    *[("logprobs_of", value) for value in ("", "draft", None, 1)],
    *[("repetition_penalty", value) for value in (0, -1, NAN, INF, "1.1")],
    *[("presence_penalty", value) for value in (NAN, INF, -INF, 1e10, "0")],
    *[("frequency_penalty", value) for value in (NAN, INF, -INF, 1e10, True)],
    *[("penalty_window", value) for value in (0, -3, 1.5, "all", True)],
    *[("seed", value) for value in (-1, 2**64, 1.0, "7", True)],
    *[("max_tokens", value) for value in (0, -1, 1.5, None, True)],
    *[("law", value) for value in ("", "typical", None, 1, ["rejection"])],
    *[("stop", value) for value in ("END", ("",), (1,), None, {"a"})],
    *[("stop_ids", value) for value in (2, (-1,), (True,), ("2",), (2**31,), None)],
    *[("logit_bias", value) for value in ([1], {-1: 1}, {"1": 1}, {True: 1}, {1: "2"}, None)],
    *[("logit_bias", value) for value in ({1: NAN}, {1: INF}, {1: True}, {1.5: 1})],
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_wrong_value_names_the_field_the_value_and_what_it_may_be(name: str, value: Any) -> None:
    """Nothing out of range gets through, and the message says all that is needed to mend it."""
    with pytest.raises(SamplingError) as error:
        SamplingParams(**{name: value})
    message = str(error.value)
    culprit = value
    if isinstance(value, tuple | dict) and name != "law":
        culprit = next(iter(value), value)
    assert name in message
    assert repr(culprit) in message or repr(value) in message
    assert "must be" in message


def test_the_ends_of_every_range_are_allowed() -> None:
    """What the messages call allowed is allowed."""
    SamplingParams(temperature=0, top_k=0, top_p=1, min_p=1, seed=0, max_tokens=1)
    SamplingParams(temperature=1e9, top_k=10**30, top_p=1e-300, min_p=0, seed=2**64 - 1)
    SamplingParams(penalty_window=1, repetition_penalty=1e-9, presence_penalty=-1e9)
    SamplingParams(logit_bias={0: -INF, 5: 1e9}, stop=("a", "b"), stop_ids=(0,))
    SamplingParams(typical_p=1e-300, xtc_probability=1, xtc_threshold=0.5, logprobs=10**30)
    SamplingParams(dry_multiplier=1e9, dry_base=1, dry_allowed_length=10**30, dry_window=1)
    SamplingParams(dry_breakers=(), allowed_ids=(0, 0))
    SamplingParams(processors=(lambda token_ids, logits: logits,))


def test_tokens_that_are_allowed_and_forbidden_at_once_are_an_error() -> None:
    """What would leave nothing to draw is refused at once; one token left is enough."""
    with pytest.raises(SamplingError, match="allowed_ids"):
        SamplingParams(allowed_ids=(1, 2), logit_bias={1: -INF, 2: -INF})
    SamplingParams(allowed_ids=(1, 2), logit_bias={1: -INF, 2: -5.0})


def test_an_unknown_field_is_an_error() -> None:
    """A misspelt field is refused rather than ignored."""
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(temprature=1.0)  # type: ignore[call-arg]  # the mistake in question


def test_numbers_of_other_types_become_plain_ones() -> None:
    """numpy scalars and fractions are taken by value, so that no arithmetic depends on them."""
    params = SamplingParams(
        temperature=np.float32(0.5),  # type: ignore[arg-type]  # as a caller without types would
        top_p=Fraction(1, 2),  # type: ignore[arg-type]
        top_k=np.int64(3),  # type: ignore[arg-type]
        logit_bias={np.int32(4): np.float64(2)},  # type: ignore[dict-item]
    )
    values = (params.temperature, params.top_p, params.top_k, *params.logit_bias.items())
    assert values == (0.5, 0.5, 3, (4, 2.0))
    assert {type(x) for x in (params.temperature, params.top_p)} == {float}
    assert type(params.top_k) is int


def test_params_do_not_change_when_the_callers_mapping_does() -> None:
    """The bias is copied and the fields cannot be assigned."""
    bias = {1: 2.0}
    params = SamplingParams(logit_bias=bias)
    bias[1] = 9.0
    assert params.logit_bias == {1: 2.0}
    with pytest.raises(FrozenInstanceError):
        params.temperature = 1.0  # type: ignore[misc]  # the assignment in question


def test_params_can_be_written_out_and_read_back() -> None:
    """`asdict` gives the fields that make an equal object, as a report or a profile needs."""
    params = SamplingParams(stop=("x",), logit_bias={3: 1.0}, seed=5)
    assert SamplingParams(**asdict(params)) == params


def test_every_law_name_has_a_law() -> None:
    """The names that a request may give are the laws there are."""
    assert set(LAW_NAMES) == set(LAWS)
