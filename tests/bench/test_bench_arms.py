"""Each way of decoding answers the same prompt, and says truly what it took."""

import time

import pytest

from mtplx.bench.arms import Arm, Case, make_arms, make_cases, parse_depths
from mtplx.errors import UsageError
from mtplx.loading.load import LoadedModel
from mtplx.params import SamplingParams
from mtplx.prompts import Prompt
from tests.greedy import same_greedy

PARAMS = SamplingParams(temperature=0.0, max_tokens=24)


def case_of(model: LoadedModel, text: str = "Once upon a time") -> Case:
    (case,) = make_cases(model, (Prompt("prose", text),), first_seed=3)
    return case


@pytest.mark.parametrize(
    ("text", "depths"),
    [
        ("off,1,2", (0, 1, 2)),
        ("4, 2 ,2", (0, 2, 4)),
        ("OFF", (0,)),
        ("0,16", (0, 16)),
        ("auto, 1, Auto", (0, 1, "auto")),
    ],
)
def test_depths_are_read_in_order_with_plain_decoding_always_there(
    text: str, depths: tuple[int | str, ...]
) -> None:
    """Spaces, repetitions and order do not matter, and 0 is never missing."""
    assert parse_depths(text) == depths


@pytest.mark.parametrize("word", ["", "-1", "on", "1.5", "17", "٣", "²"])
def test_what_is_no_depth_is_a_usage_error_that_names_it(word: str) -> None:
    """The word is repeated, with what it may be."""
    with pytest.raises(UsageError, match=rf"'{word}' is no depth.*1 to 16"):
        parse_depths(f"off,{word},2")


def test_every_prompt_has_a_seed_of_its_own(tiny_model: LoadedModel) -> None:
    """Cases are numbered from the first seed on."""
    prompts = tuple(Prompt("chat", text) for text in "abc")
    assert [case.seed for case in make_cases(tiny_model, prompts, 5)] == [5, 6, 7]


@pytest.mark.parametrize("depth", [1, 3, "auto"])
def test_drafting_gives_the_greedy_tokens_of_plain_decoding(
    tiny_model: LoadedModel, depth: int | str
) -> None:
    """At temperature 0 the arms answer alike, and none drafts further than its depth."""
    case = case_of(tiny_model)
    plain, drafted = (
        arm.answer(case, PARAMS) for arm in make_arms(tiny_model, (0, depth), mlx_lm=False)
    )
    assert same_greedy(tiny_model.target, case.token_ids, plain.token_ids, drafted.token_ids)
    assert plain.drafted == ()
    if isinstance(depth, int):  # auto may find that nothing pays, going by the clock
        assert 0 < len(drafted.drafted) <= depth


def test_plain_decoding_takes_a_round_for_each_token(tiny_model: LoadedModel) -> None:
    """Its acceptance length is 1, whatever the reply."""
    (arm,) = make_arms(tiny_model, (0,), mlx_lm=False)
    sample = arm.answer(case_of(tiny_model), PARAMS)
    assert sample.num_rounds == len(sample.token_ids) > 0


def test_the_seed_of_the_case_decides_the_reply(tiny_model: LoadedModel) -> None:
    """Sampled replies are the same again, and others with another seed."""
    (arm,) = make_arms(tiny_model, (0,), mlx_lm=False)
    params = SamplingParams(temperature=1.0, max_tokens=24)
    prompts = (Prompt("chat", "Hello"), Prompt("chat", "Hello"))
    one, other = make_cases(tiny_model, prompts, first_seed=1)
    assert arm.answer(one, params).token_ids == arm.answer(one, params).token_ids
    assert arm.answer(one, params).token_ids != arm.answer(other, params).token_ids


@pytest.mark.parametrize("depth", [0, 2, "auto"])
def test_a_state_that_has_read_the_prompt_gives_the_reply_of_a_new_one(
    tiny_model: LoadedModel, depth: int | str
) -> None:
    """Whatever arm used it before; the prompt is not read again."""
    case = case_of(tiny_model)
    state = tiny_model.new_state(list(case.token_ids))
    arms = make_arms(tiny_model, (0, 2, depth), mlx_lm=False, state_of=lambda _: state)
    (new,) = make_arms(tiny_model, (depth,), mlx_lm=False)
    for arm in arms:
        again = arm.answer(case, PARAMS)
    assert same_greedy(
        tiny_model.target, case.token_ids, new.answer(case, PARAMS).token_ids, again.token_ids
    )
    assert state.token_ids[: len(case.token_ids)] == list(case.token_ids)


def test_drafting_without_a_head_is_refused_with_the_reason(headless_model: LoadedModel) -> None:
    """The error says why, and what can be measured instead."""
    with pytest.raises(UsageError, match=r"no MTP head was found.*--depths off"):
        make_arms(headless_model, (0, 2), mlx_lm=False)


@pytest.fixture(scope="module")
def with_mlx_lm(tiny_model: LoadedModel) -> tuple[Arm, Arm]:
    """Plain decoding and mlx-lm's, both warm."""
    off, mlx_lm = make_arms(tiny_model, (0,), mlx_lm=True)
    for arm in (off, mlx_lm):
        arm.answer(case_of(tiny_model), PARAMS)
    return off, mlx_lm


@pytest.mark.slow
@pytest.mark.parametrize("text", ["Once upon a time", "x", "a list of " + "words, " * 60])
def test_mlx_lm_gives_the_greedy_tokens_of_plain_decoding(
    tiny_model: LoadedModel, with_mlx_lm: tuple[Arm, Arm], text: str
) -> None:
    """The two loops over the same weights answer alike at temperature 0."""
    case = case_of(tiny_model, text)
    plain, theirs = (arm.answer(case, PARAMS) for arm in with_mlx_lm)
    assert same_greedy(tiny_model.target, case.token_ids, plain.token_ids, theirs.token_ids)


@pytest.mark.slow
@pytest.mark.parametrize("max_tokens", [1, 2, 24])
def test_mlx_lm_stops_where_plain_decoding_stops(
    tiny_model: LoadedModel, with_mlx_lm: tuple[Arm, Arm], max_tokens: int
) -> None:
    """Both give as many tokens as asked for, unless an end token comes first, which counts."""
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    plain, theirs = (arm.answer(case_of(tiny_model), params) for arm in with_mlx_lm)
    assert len(plain.token_ids) == len(theirs.token_ids)


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 1])
def test_decode_time_leaves_prefill_out(
    tiny_model: LoadedModel, with_mlx_lm: tuple[Arm, Arm], which: int
) -> None:
    """Of a long prompt and one token, prefill takes the larger part; both fit into the whole."""
    case = case_of(tiny_model, "a long prompt " * 120)
    params = SamplingParams(temperature=0.0, max_tokens=1)
    samples = []
    for _ in range(3):
        started_s = time.perf_counter()
        sample = with_mlx_lm[which].answer(case, params)
        assert 0 < sample.prefill_s + sample.decode_s <= time.perf_counter() - started_s
        samples.append(sample)
    assert min(s.decode_s for s in samples) < min(s.prefill_s for s in samples)
