import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mtplx.errors import PromptTooLongError, SamplingError, UsageError
from mtplx.generate import Result, TextEvent, encode_prompt, generate, stream
from mtplx.loading.load import LoadedModel, load
from mtplx.models.llama import LlamaTarget
from mtplx.params import SamplingParams
from mtplx.state import DecodeState
from mtplx.text.template import Message
from tests.tiny import ScriptedDrafter
from tests.tiny_gguf import DIMS, write_head, write_model

PROMPT = "Tell me something."
GREEDY = SamplingParams(temperature=0, max_tokens=48)
DEPTHS = (0, 1, 2, 4, 7)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("model")
    path = write_model(folder / "tiny.gguf")
    return load(path, head=write_head(folder / "head.safetensors", path))


@pytest.fixture(scope="module")
def plain(model: LoadedModel) -> Result:
    return generate(model, PROMPT, GREEDY, depth=0)


def state_that_accepts(model: LoadedModel, text: Sequence[int]) -> DecodeState:
    """A state whose drafts are right, so that every round brings a whole block."""
    assert isinstance(model.target, LlamaTarget)
    prompt_ids = encode_prompt(model.tokenizer, PROMPT)
    drafter = ScriptedDrafter(model.target, [*prompt_ids, *text], lambda position: 99)
    return DecodeState(model.target, drafter)


def parts(events: Iterator[TextEvent]) -> tuple[str, list[int], Result]:
    """The joined texts and ids of events, and the result, which only the last may have."""
    listed = list(events)
    assert all(event.result is None for event in listed[:-1])
    result = listed[-1].result
    assert result is not None
    ids = [token_id for event in listed for token_id in event.token_ids]
    return "".join(event.text for event in listed), ids, result


@pytest.mark.parametrize("depth", DEPTHS)
def test_events_add_up_to_the_result(model: LoadedModel, plain: Result, depth: int) -> None:
    """The texts and ids of all events are the result's, and its count is theirs."""
    state = state_that_accepts(model, plain.token_ids)
    text, ids, result = parts(stream(model, PROMPT, GREEDY, depth=depth, state=state))
    assert (text, ids) == (result.text, list(result.token_ids))
    assert result.num_tokens == result.stats.num_tokens == len(ids)
    assert result.acceptance_length > 1 or depth == 0


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("stop_after", range(1, 12))
def test_a_stop_string_ends_at_the_same_token_at_any_depth(
    model: LoadedModel, plain: Result, depth: int, stop_after: int
) -> None:
    """Where a block goes on behind a stop string, the rest of it is no part of the reply."""
    start = 3 * stop_after
    stops = (plain.text[start : start + 2],)
    expected = generate(model, PROMPT, GREEDY, stop=stops, depth=0)
    state = state_that_accepts(model, plain.token_ids)
    result = generate(model, PROMPT, GREEDY, stop=stops, depth=depth, state=state)
    assert (result.text, result.token_ids) == (expected.text, expected.token_ids)
    assert result.finish_reason == "stop"
    assert plain.text.startswith(result.text + stops[0])
    assert stops[0] not in result.text
    assert result.stats.num_tokens == len(result.token_ids)


def test_the_token_that_completes_a_stop_string_is_the_last(
    model: LoadedModel, plain: Result
) -> None:
    """The ids hold the stop string and nothing behind it."""
    stop = plain.text[10:13]
    result = generate(model, PROMPT, GREEDY, stop=(stop,), depth=0)
    decode = model.tokenizer.decode
    assert stop in decode(result.token_ids)
    assert stop not in decode(result.token_ids[:-1])


@pytest.mark.parametrize("depth", DEPTHS)
def test_an_end_token_is_emitted_and_not_shown(
    model: LoadedModel, plain: Result, depth: int
) -> None:
    """The end token is the last id and no part of the text, also where it is an ordinary token."""
    end = next(
        i
        for i, token_id in enumerate(plain.token_ids[8:], 8)
        if token_id not in plain.token_ids[:i]
    )
    state = state_that_accepts(model, plain.token_ids)
    params = replace(GREEDY, stop_ids=(plain.token_ids[end],))
    result = generate(model, PROMPT, params, depth=depth, state=state)
    assert result.token_ids == plain.token_ids[: end + 1]
    assert result.finish_reason == "stop"
    assert result.text == model.tokenizer.decode(plain.token_ids[:end])


@pytest.mark.parametrize("max_tokens", range(1, 40))
def test_a_reply_cut_by_length_never_ends_in_half_a_character(
    model: LoadedModel, plain: Result, max_tokens: int
) -> None:
    """max_tokens inside a character leaves that character out and counts its tokens."""
    result = generate(model, PROMPT, GREEDY, max_tokens=max_tokens, depth=0)
    assert result.finish_reason == "length"
    assert result.token_ids == plain.token_ids[:max_tokens]
    assert plain.text.startswith(result.text)
    assert len(model.tokenizer.decode(result.token_ids)) - len(result.text) in (0, 1)


def test_text_held_back_for_a_stop_string_is_shown_at_the_end(
    model: LoadedModel, plain: Result
) -> None:
    """What might have become a stop string is text when the reply ends first."""
    stop = plain.text[-3:] + "never"
    text, _, result = parts(stream(model, PROMPT, GREEDY, stop=(stop,), depth=0))
    assert text == result.text == plain.text


@pytest.mark.parametrize("num_rounds", [1, 2, 5])
def test_an_interruption_ends_the_reply_with_a_result(
    model: LoadedModel, plain: Result, num_rounds: int
) -> None:
    """`interrupted` is asked once a round; the reply is then a beginning of the whole one."""
    answers = iter([False] * (num_rounds - 1) + [True])
    result = generate(model, PROMPT, GREEDY, depth=0, interrupted=lambda: next(answers))
    assert result.finish_reason == "interrupted"
    assert result.token_ids == plain.token_ids[:num_rounds]
    assert plain.text.startswith(result.text)


def leave_early(model: LoadedModel, state: DecodeState, depth: int) -> None:
    for _, event in zip(
        range(3), stream(model, PROMPT, GREEDY, state=state, depth=depth), strict=False
    ):
        assert event.result is None


def raise_in_the_middle(model: LoadedModel, state: DecodeState, depth: int) -> None:
    def interrupted() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(model, PROMPT, GREEDY, state=state, depth=depth, interrupted=interrupted)


def stop_in_a_block(model: LoadedModel, state: DecodeState, depth: int) -> None:
    whole = generate(model, PROMPT, GREEDY, depth=0).text
    generate(model, PROMPT, GREEDY, state=state, depth=depth, stop=(whole[9:11],))


@pytest.mark.parametrize("depth", [0, 4])
@pytest.mark.parametrize("end", [leave_early, raise_in_the_middle, stop_in_a_block])
def test_a_state_is_good_for_another_turn_however_the_last_one_ended(
    model: LoadedModel,
    plain: Result,
    depth: int,
    end: Callable[[LoadedModel, DecodeState, int], None],
) -> None:
    """The next turn reuses what it shares with the last and says what a fresh state says."""
    state = state_that_accepts(model, plain.token_ids)
    end(model, state, depth)
    turns = [Message("user", PROMPT), Message("assistant", "well"), Message("user", "and?")]
    again = generate(model, turns, GREEDY, state=state, depth=depth)
    fresh = generate(model, turns, GREEDY, depth=0)
    assert again.token_ids == fresh.token_ids
    assert again.num_reused_tokens > 0
    assert fresh.num_reused_tokens == 0


def test_the_reported_seed_gives_the_same_reply(model: LoadedModel) -> None:
    """Without a seed each reply takes a fresh one, and tells it; coupled, no depth changes it."""
    params = SamplingParams(temperature=1.0, max_tokens=24, law="coupled")
    first, second = (generate(model, PROMPT, params) for _ in range(2))
    again = generate(model, PROMPT, params, seed=first.seed)
    assert again.token_ids == first.token_ids != second.token_ids
    assert again.seed == first.seed != second.seed


def test_single_fields_go_on_top_of_params(model: LoadedModel) -> None:
    """Fields given by name replace those of `params` and leave the others."""
    result = generate(model, PROMPT, replace(GREEDY, stop_ids=(1,)), max_tokens=3, depth=0)
    assert result.num_tokens == 3
    assert result.token_ids == generate(model, PROMPT, GREEDY, depth=0).token_ids[:3]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"temprature": 0.5}, r"no sampling field 'temprature'. Did you mean temperature\?"),
        ({"xyz": 1}, "There are: temperature, top_k"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"temperature": -1}, "temperature is -1"),
    ],
)
def test_wrong_fields_are_refused_at_once(
    model: LoadedModel, fields: dict[str, Any], told: str
) -> None:
    """A field that is unknown or out of range raises before anything is decoded, by name."""
    with pytest.raises(SamplingError, match=told):
        stream(model, PROMPT, **fields)


@pytest.mark.parametrize("depth", [-1, 17, True, 1.0, "2"])
def test_wrong_depths_are_refused_at_once(model: LoadedModel, depth: int) -> None:
    """A depth is a whole number from 0 to MAX_DEPTH."""
    with pytest.raises(UsageError, match=f"depth is {depth!r}"):
        stream(model, PROMPT, depth=depth)


def test_without_a_head_only_an_asked_for_depth_is_an_error(model: LoadedModel) -> None:
    """No head means plain decoding where nothing was asked, and the reason where it was."""
    headless = replace(model, head=None, shortlist=None, no_head_reason="it has none.")
    assert generate(headless, PROMPT, GREEDY).depth == 0
    assert generate(headless, PROMPT, GREEDY, depth=0).depth == 0
    with pytest.raises(UsageError, match=r"Cannot draft 2 tokens per round: it has none\."):
        stream(headless, PROMPT, GREEDY, depth=2)
    assert generate(model, PROMPT, GREEDY).depth == "auto"


@pytest.mark.parametrize("prompt", ["", []])
def test_an_empty_prompt_is_refused(model: LoadedModel, prompt: str) -> None:
    """There has to be something to answer."""
    with pytest.raises(UsageError, match="prompt is empty"):
        stream(model, prompt)


def test_a_text_is_one_message_or_with_raw_itself(model: LoadedModel) -> None:
    """A string goes through the chat template unless `raw` is set or there is none."""
    tokenizer = model.tokenizer
    chat = encode_prompt(tokenizer, PROMPT)
    assert chat == encode_prompt(tokenizer, [Message("user", PROMPT)])
    assert encode_prompt(tokenizer, PROMPT, raw=True) == tokenizer.encode_prompt(PROMPT) != chat
    with pytest.raises(UsageError, match="chat template"):
        encode_prompt(tokenizer, [Message("user", PROMPT)], raw=True)


def test_a_model_without_turns_continues_a_text(tmp_path: Path) -> None:
    """A base model needs no `raw`: its prompt is the text."""
    base = load(write_model(tmp_path / "base.gguf", template=None))
    assert encode_prompt(base.tokenizer, PROMPT) == base.tokenizer.encode_prompt(PROMPT)


def test_a_prompt_beyond_the_context_is_refused_with_its_length(model: LoadedModel) -> None:
    """The error tells how many tokens there are and how many there may be."""
    with pytest.raises(PromptTooLongError, match=rf"2,000 tokens.*{DIMS.context_length - 1:,}"):
        generate(model, "x" * 2000, raw=True)


def test_json_is_what_is_promised(model: LoadedModel, plain: Result) -> None:
    """The object has the promised names, plain values, and timings that sum to their total."""
    whole = json.loads(json.dumps(plain.to_json(), allow_nan=False))
    promised = "text token_ids num_prompt_tokens num_tokens finish_reason depth law"
    promised += " acceptance_length acceptance_per_position timings seed model fallbacks"
    assert set(promised.split()) <= whole.keys()
    assert whole["token_ids"] == list(plain.token_ids)
    timings = whole["timings"]
    assert list(timings)[-1] == "total_s"
    total = timings.pop("total_s")
    assert sum(timings.values()) == pytest.approx(total, rel=1e-9)
    assert total > 0


@pytest.mark.slow
def test_depths_agree_on_the_default_model(smollm2_path: Path) -> None:
    """Prompt, text and ids of a greedy reply are the same at every depth, and it is English."""
    model = load(smollm2_path)
    depths = (0, 1, 3) if model.can_draft else (0,)
    params = SamplingParams(temperature=0, max_tokens=24)
    results = [generate(model, "Why is the sky blue?", params, depth=depth) for depth in depths]
    assert "sky" in results[0].text
    assert all(a.token_ids == b.token_ids for a, b in pairwise(results))
