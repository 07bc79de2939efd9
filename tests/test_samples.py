"""Several samples of one prompt, and several streams at once."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from mtplx.errors import SamplingError, UsageError
from mtplx.generate import Result, TextEvent, generate, stream, stream_samples
from mtplx.loading.load import LoadedModel, load
from mtplx.params import SamplingParams
from mtplx.rng import sample_seed
from tests.tiny_gguf import write_head, write_model

PROMPT = "Tell me something."
SAMPLED = SamplingParams(temperature=1.0, max_tokens=20, seed=5)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("model")
    path = write_model(folder / "tiny.gguf")
    return load(path, head=write_head(folder / "head.safetensors", path))


@pytest.mark.parametrize("depth", [0, 2])
def test_each_sample_is_the_reply_of_its_own_seed(model: LoadedModel, depth: int) -> None:
    """Alone and from a state of its own it comes out the same, and the first has the given seed."""
    results = generate(model, PROMPT, SAMPLED, n=4, depth=depth)
    assert [r.seed for r in results] == [sample_seed(5, i) for i in range(4)]
    assert results[0].seed == 5
    for result in results:
        alone = generate(model, PROMPT, SAMPLED, seed=result.seed, depth=depth)
        assert alone.token_ids == result.token_ids
    assert len({r.token_ids for r in results}) == 4


@pytest.mark.parametrize("depth", [0, 2])
def test_samples_read_the_prompt_once(model: LoadedModel, depth: int) -> None:
    """From the second on, all but the last tokens of the prompt are in the caches."""
    results = generate(model, PROMPT, SAMPLED, n=3, depth=depth)
    assert results[0].num_reused_tokens == 0
    for result in results[1:]:
        assert result.num_prompt_tokens - result.num_reused_tokens <= 2


def test_without_a_seed_samples_differ_from_call_to_call(model: LoadedModel) -> None:
    """A fresh seed is taken for all of them together."""
    params = replace(SAMPLED, seed=None)
    first, second = (generate(model, PROMPT, params, n=2) for _ in range(2))
    assert len({r.seed for r in first + second}) == 4
    assert first[1].seed == sample_seed(first[0].seed, 1)


def test_no_seed_of_a_sample_comes_twice() -> None:
    """Neighbouring seeds and samples have seeds of their own, all in range."""
    seeds = [sample_seed(seed, i) for seed in (0, 1, 2, 2**64 - 1) for i in range(100)]
    assert len(set(seeds)) == 400
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_one_sample_asked_for_by_number_is_a_list(model: LoadedModel) -> None:
    """n=1 gives a list of one, and no n a result."""
    [only] = generate(model, PROMPT, SAMPLED, n=1)
    assert generate(model, PROMPT, SAMPLED).token_ids == only.token_ids


@pytest.mark.parametrize("n", [0, -1, True, 1.0, "2"])
def test_a_wrong_number_of_samples_is_refused(model: LoadedModel, n: Any) -> None:
    """The message has the value and what it may be."""
    with pytest.raises(UsageError, match=f"n is {n!r}, but must be a whole number of 1 or more"):
        generate(model, PROMPT, SAMPLED, n=n)


def test_samples_that_would_all_be_the_same_are_refused(model: LoadedModel) -> None:
    """At temperature 0 there is one reply."""
    with pytest.raises(UsageError, match="temperature 0"):
        generate(model, PROMPT, SAMPLED, n=2, temperature=0)
    assert len(generate(model, PROMPT, SAMPLED, n=1, temperature=0)) == 1


def test_an_interruption_ends_the_remaining_samples(model: LoadedModel) -> None:
    """What has been written is given, and no other sample is begun."""
    asked = iter(range(1000))
    results = generate(model, PROMPT, SAMPLED, n=5, depth=0, interrupted=lambda: next(asked) > 30)
    assert [r.finish_reason == "interrupted" for r in results] == [False] * (len(results) - 1) + [
        True
    ]
    assert 1 < len(results) < 5


def test_a_sample_cannot_go_on_once_the_next_has_begun(model: LoadedModel) -> None:
    """They share a state, and the error says so."""
    first, second = stream_samples(model, PROMPT, SAMPLED, n=2, depth=0)
    next(first)
    next(second)
    with pytest.raises(UsageError, match="Another request has begun"):
        next(first)


SETTINGS: list[dict[str, Any]] = [
    {"temperature": 1.0, "seed": 1},
    {"temperature": 0.7, "seed": 2, "top_p": 0.9, "depth": 3, "frequency_penalty": 0.5},
    {"temperature": 1.2, "seed": 3, "law": "coupled", "depth": 2, "xtc_probability": 0.5},
    {"temperature": 0, "depth": 1, "dry_multiplier": 0.8, "logprobs": 2},
]


def test_streams_at_once_do_not_disturb_each_other(model: LoadedModel) -> None:
    """Rounds taken in turn from requests of different settings give what each gives alone."""
    alone = [generate(model, PROMPT, SAMPLED, **s) for s in SETTINGS]
    open_streams: list[Iterator[TextEvent]] = [
        stream(model, PROMPT, SAMPLED, **s) for s in SETTINGS
    ]
    results: dict[int, Result] = {}
    while len(results) < len(open_streams):
        for i, events in enumerate(open_streams):
            event = next(events, None)
            if event is not None and event.result is not None:
                results[i] = event.result
    for i, expected in enumerate(alone):
        assert results[i].token_ids == expected.token_ids
        assert results[i].logprobs == expected.logprobs
        assert results[i].acceptance_per_position == expected.acceptance_per_position


def test_a_breaker_that_no_token_holds_is_an_error(model: LoadedModel) -> None:
    """A text of several tokens cannot break a passage, and the message names it."""
    with pytest.raises(SamplingError, match="'zzz zzz'"):
        stream(model, PROMPT, SAMPLED, dry_multiplier=1.0, dry_breakers=("zzz zzz",))
