import gc
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest

from mtplx.chat.report import closing, totals
from mtplx.chat.session import Begun, Conversation
from mtplx.chat.settings import Settings
from mtplx.errors import CheckpointError, MemoryLimitError, PromptTooLongError, UsageError
from mtplx.generate import Result, encode_prompt, generate
from mtplx.loading.load import LoadedModel, load
from mtplx.params import SamplingParams
from mtplx.state import PREFILL_ROWS
from mtplx.text.template import Message
from tests.chat.conversations import ALL_ROUNDS, GREEDY, again, say
from tests.tiny_gguf import DIMS, write_head, write_model

SWITCHES = [(True, True), (False, False), (True, False), (False, True)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("model")
    path = write_model(folder / "tiny.gguf")
    return load(path, head=write_head(folder / "head.safetensors", path))


def converse(
    model: LoadedModel, switches: tuple[bool, bool], *, num_rounds: int = ALL_ROUNDS
) -> tuple[Conversation, Result, Result]:
    """Two turns, with drafting on or off in each, the first stopped after so many rounds."""
    conversation = Conversation(model, Settings(GREEDY, drafts=switches[0]))
    first = say(conversation, "Tell me something.", num_rounds=num_rounds)
    conversation.settings = Settings(GREEDY, drafts=switches[1])
    return conversation, first, say(conversation, "Go on.")


def shared_length(first: list[int], second: list[int]) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))


@pytest.mark.parametrize("num_rounds", [1, 3, ALL_ROUNDS])
@pytest.mark.parametrize("switches", SWITCHES)
def test_a_later_turn_equals_a_cold_run(
    model: LoadedModel, switches: tuple[bool, bool], num_rounds: int
) -> None:
    """With MTP on, off or switched, and after an interrupted reply, turn 2 is as from scratch."""
    conversation, _, second = converse(model, switches, num_rounds=num_rounds)
    cold = generate(model, conversation.transcript.prompt[:-1], GREEDY, depth=0)
    assert second.token_ids == cold.token_ids
    assert second.num_prompt_tokens == cold.num_prompt_tokens


@pytest.mark.parametrize("num_rounds", [3, ALL_ROUNDS])
@pytest.mark.parametrize("switches", SWITCHES[:3])
def test_a_later_turn_computes_only_what_is_new(
    model: LoadedModel, switches: tuple[bool, bool], num_rounds: int
) -> None:
    """Of what the first turn had in its caches, the second computes two tokens again at most."""
    conversation, first, second = converse(model, switches, num_rounds=num_rounds)
    prompt = conversation.transcript.prompt
    prompts = [encode_prompt(model.tokenizer, prompt[:end]) for end in (1, 3)]
    assert second.num_prompt_tokens == len(prompts[1])
    shared = shared_length([*prompts[0], *first.token_ids], prompts[1])
    assert shared >= len(prompts[0])
    assert second.num_reused_tokens >= shared - 2


def test_the_partial_reply_is_part_of_the_conversation(model: LoadedModel) -> None:
    """A reply that was stopped is in the next prompt as far as it was shown."""
    conversation = Conversation(model, Settings(GREEDY))
    stopped = say(conversation, "Tell me something.", num_rounds=4)
    assert stopped.finish_reason == "interrupted"
    assert 0 < stopped.num_tokens < GREEDY.max_tokens
    assert conversation.transcript.prompt[1:] == [Message("assistant", stopped.text)]


def test_a_message_beyond_the_context_leaves_the_conversation_as_it_was(
    model: LoadedModel,
) -> None:
    """After a message that does not fit was taken back, the next one is answered as without it."""
    conversation = Conversation(model, Settings(GREEDY))
    say(conversation, "Tell me something.")
    before = list(conversation.messages)
    with pytest.raises(PromptTooLongError, match="/context drop"):
        list(conversation.begin("x" * DIMS.context_length)(lambda: False))
    assert conversation.take_back() == "x" * DIMS.context_length
    assert conversation.messages == before
    second = say(conversation, "Go on.")
    cold = generate(model, conversation.transcript.prompt[:-1], GREEDY)
    assert second.token_ids == cold.token_ids
    assert second.num_reused_tokens > 0


def test_reading_stops_between_two_passes_and_goes_on_there(model: LoadedModel) -> None:
    """A long message that is stopped while it is read costs one pass, which is not lost."""
    conversation = Conversation(model, Settings(GREEDY))
    reply = conversation.begin("x" * (2 * PREFILL_ROWS - 200))
    *_, last = reply(lambda: True)
    assert not isinstance(last, Begun)
    assert last.result is not None
    assert last.result.finish_reason == "interrupted"
    assert last.result.token_ids == ()
    assert conversation.reading[0] < conversation.reading[1]
    conversation.take_back()
    later = say(conversation, "x" * (2 * PREFILL_ROWS - 200))
    assert later.num_reused_tokens >= PREFILL_ROWS - 1


def test_oldest_turns_are_left_out_where_that_is_chosen(model: LoadedModel) -> None:
    """With `drop`, whole turns go until half of the context is free, the system prompt never."""
    settings = Settings(GREEDY, context=400, when_full="drop", system="Be kind.")
    conversation = Conversation(model, settings)
    for turn in range(12):
        say(conversation, f"message {turn} " + "y" * 30)
    prompt = conversation.transcript.prompt
    assert len(conversation.messages) == 24
    assert conversation.transcript.first % 2 == 0
    assert conversation.transcript.first > 0
    assert prompt[0] == Message("system", "Be kind.")
    assert prompt[1:] == conversation.messages[conversation.transcript.first :]
    assert prompt[1].role == "user"


def test_a_reply_ends_where_the_chosen_context_does(model: LoadedModel) -> None:
    """Prompt and reply together have no more tokens than `context`, and the line says why."""
    endless = SamplingParams(temperature=0, max_tokens=10_000, logit_bias={1: float("-inf")})
    conversation = Conversation(model, Settings(endless, context=100))
    result = say(conversation, "Hello")
    assert result.num_prompt_tokens + result.num_tokens == 100
    line = closing(conversation, result.text, result)
    assert "context is full" in line
    assert "/clear" in line
    conversation.settings = Settings(replace(endless, max_tokens=5))
    assert closing(conversation, "a", say(conversation, "Hello")).endswith("cut by max_tokens")


def test_a_context_that_cannot_be_had_is_refused_with_the_largest(model: LoadedModel) -> None:
    """Asking for more than the model holds names what it does hold."""
    with pytest.raises(MemoryLimitError, match=f"largest is {DIMS.context_length:,}"):
        Conversation(model, Settings(GREEDY, context=131_072))


def test_memory_is_a_function_of_the_context(model: LoadedModel) -> None:
    """After 30 turns the caches are as large as the context needs, and /clear gives them back."""
    settings = Settings(replace(GREEDY, max_tokens=8), context=400, when_full="drop")
    Conversation(model, settings)
    baseline = mx.get_active_memory()
    conversation = Conversation(model, settings)
    sizes = []
    for turn in range(30):
        say(conversation, f"turn {turn} " + "z" * 20)
        assert conversation.state is not None
        sizes.append(conversation.state.num_bytes)
    half = sizes[len(sizes) // 2 :]
    assert max(half) == min(half)
    assert mx.get_active_memory() - baseline < 2 * sizes[-1]
    conversation = conversation.fresh()
    gc.collect()  # what tests before this one left in cycles counts, too
    assert mx.get_active_memory() - baseline < 0.05 * sizes[-1]


def test_the_closing_line_leaves_out_the_places_of_long_passages(model: LoadedModel) -> None:
    """The first four say how good the head is; sixteen would fill two lines."""
    conversation = Conversation(model, Settings(GREEDY, depth=3))
    result = say(conversation, "Hello")
    result.stats.drafted, result.stats.accepted = [8] * 6, [6, 4, 2, 2, 2, 2]
    assert "(0.75 0.50 0.25 0.25 ...)" in closing(conversation, "a", result)


def test_the_closing_line_has_the_figures_of_drafting(model: LoadedModel) -> None:
    """With drafting it has the acceptance length and each position's share, without it says so."""
    conversation = Conversation(model, Settings(GREEDY, depth=3))
    line = closing(conversation, "a", result := say(conversation, "Hello"))
    shares = " ".join(f"{share:.2f}" for share in result.acceptance_per_position)
    assert f"acceptance length {result.acceptance_length:.2f} ({shares})" in line
    conversation.settings = Settings(GREEDY, drafts=False)
    assert "MTP off" in closing(conversation, "a", say(conversation, "Hello"))


def test_the_totals_are_the_sums_of_all_replies(model: LoadedModel) -> None:
    """Counts and times of stopped and finished replies add up, whatever their depths."""
    conversation = Conversation(model, Settings(GREEDY, depth=1))
    results = [say(conversation, "Hello"), say(conversation, "And?", num_rounds=3)]
    conversation.settings = Settings(GREEDY, depth=4)
    results.append(say(conversation, "So?"))
    summed = conversation.totals
    assert conversation.num_replies == 3
    assert summed.num_tokens == sum(result.num_tokens for result in results)
    assert summed.num_reused_tokens == sum(result.num_reused_tokens for result in results)
    assert summed.drafted[0] == sum(result.stats.drafted[0] for result in results)
    drafted = [sum(count.drafted for count in r.stats.sources.values()) for r in results]
    assert sum(count.drafted for count in summed.sources.values()) == sum(drafted)
    assert summed.total_s == pytest.approx(sum(result.stats.total_s for result in results))
    assert any(f"{summed.num_reused_tokens:,} reused" in line for line in totals(conversation))


def test_a_seed_makes_the_same_conversation_again(model: LoadedModel) -> None:
    """With a seed two conversations have the same replies; without one they differ."""

    def replies(seed: int | None) -> list[str]:
        params = SamplingParams(temperature=1.0, max_tokens=24, seed=seed)
        conversation = Conversation(model, Settings(params))
        return [say(conversation, text).text for text in ("Hello", "And?")]

    assert replies(5) == replies(5)
    assert replies(None) != replies(None)


def test_a_reply_made_again_is_another_one(model: LoadedModel) -> None:
    """With a seed too, the second answer differs from the first, and is the same each time."""

    def answers() -> list[str]:
        params = SamplingParams(temperature=1.0, max_tokens=24, seed=5)
        conversation = Conversation(model, Settings(params))
        first = say(conversation, "Hello").text
        return [first, again(conversation).text, again(conversation).text]

    made = answers()
    assert len(set(made)) == 3
    assert answers() == made


def test_a_model_without_turns_is_refused(tmp_path: Path) -> None:
    """A model that has no chat template cannot hold a conversation, and the error says what can."""
    model = load(write_model(tmp_path / "base.gguf", template=None))
    with pytest.raises(CheckpointError, match="mtplx generate --raw"):
        Conversation(model, Settings())


def test_a_depth_that_cannot_be_drafted_is_refused(model: LoadedModel, tmp_path: Path) -> None:
    """A depth out of range, or any without a head, is an error before anything is said."""
    with pytest.raises(UsageError, match="depth is 99"):
        Conversation(model, Settings(depth=99))
    headless = load(write_model(tmp_path / "tiny.gguf"))
    with pytest.raises(UsageError, match="no MTP head"):
        Conversation(headless, Settings(depth=2))


@pytest.mark.slow
@pytest.mark.parametrize("switches", SWITCHES)
def test_the_default_model_goes_on_as_from_scratch(
    smollm2_path: Path, switches: tuple[bool, bool]
) -> None:
    """Turn 2 equals a cold run, and computes its own message and the end of the reply only."""
    model = load(smollm2_path)
    conversation, _, second = converse(model, switches, num_rounds=12)
    cold = generate(model, conversation.transcript.prompt[:-1], GREEDY, depth=0)
    assert second.token_ids == cold.token_ids
    if switches != (False, True) or not model.can_draft:
        message = [*model.tokenizer.encode("Go on.", parse_special=False)]
        assert second.num_prompt_tokens - second.num_reused_tokens <= len(message) + 16
