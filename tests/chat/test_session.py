from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from mtplx.chat.report import closing, totals
from mtplx.chat.session import Conversation, Settings
from mtplx.errors import CheckpointError, PromptTooLongError, UsageError
from mtplx.generate import Result, encode_prompt, generate
from mtplx.loading.load import LoadedModel, load
from mtplx.params import SamplingParams
from mtplx.text.template import Message
from tests.tiny_gguf import DIMS, write_head, write_model

GREEDY = SamplingParams(temperature=0, max_tokens=24)
SWITCHES = [(True, True), (False, False), (True, False), (False, True)]
ALL_ROUNDS = 10_000


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("model")
    path = write_model(folder / "tiny.gguf")
    return load(path, head=write_head(folder / "head.safetensors", path))


def say(conversation: Conversation, text: str, *, num_rounds: int = ALL_ROUNDS) -> Result:
    """A turn, stopped after so many rounds."""
    rounds = count(1)
    events = list(conversation.begin(text)(lambda: next(rounds) >= num_rounds))
    result = events[-1].result
    assert result is not None
    conversation.end("".join(event.text for event in events))
    return result


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
    cold = generate(model, conversation.prompt[:-1], GREEDY, depth=0)
    assert second.token_ids == cold.token_ids
    assert second.num_prompt_tokens == cold.num_prompt_tokens


@pytest.mark.parametrize("num_rounds", [3, ALL_ROUNDS])
@pytest.mark.parametrize("switches", SWITCHES[:3])
def test_a_later_turn_computes_only_what_is_new(
    model: LoadedModel, switches: tuple[bool, bool], num_rounds: int
) -> None:
    """Of what the first turn had in its caches, the second computes two tokens again at most."""
    conversation, first, second = converse(model, switches, num_rounds=num_rounds)
    prompts = [encode_prompt(model.tokenizer, conversation.prompt[:end]) for end in (1, 3)]
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
    assert conversation.prompt[1:] == [Message("assistant", stopped.text)]


def test_a_message_beyond_the_context_leaves_the_conversation_as_it_was(
    model: LoadedModel,
) -> None:
    """After a message that does not fit was taken back, the next one is answered as without it."""
    conversation = Conversation(model, Settings(GREEDY))
    say(conversation, "Tell me something.")
    before = list(conversation.messages)
    with pytest.raises(PromptTooLongError):
        list(conversation.begin("x" * DIMS.context_length)(lambda: False))
    conversation.take_back()
    assert conversation.messages == before
    second = say(conversation, "Go on.")
    assert second.token_ids == generate(model, conversation.prompt[:-1], GREEDY).token_ids
    assert second.num_reused_tokens > 0


def test_the_closing_line_tells_what_to_do_when_the_context_is_full(model: LoadedModel) -> None:
    """A reply that the context cuts is told from one that --max-tokens cuts."""
    endless = SamplingParams(temperature=0, max_tokens=10_000, logit_bias={1: float("-inf")})
    conversation = Conversation(model, Settings(endless))
    short = Conversation(model, Settings(replace(endless, max_tokens=5)))
    full = say(conversation, "x" * (DIMS.context_length - 60))
    assert "context is full" in closing(conversation, full.text, full)
    assert "/clear" in closing(conversation, full.text, full)
    assert closing(short, "a", say(short, "Hello")).endswith("cut by --max-tokens")


def test_the_closing_line_has_the_figures_of_drafting(model: LoadedModel) -> None:
    """With drafting it has the acceptance length and each position's share, without it says so."""
    conversation = Conversation(model, Settings(GREEDY, depth=3))
    line = closing(conversation, "a", result := say(conversation, "Hello"))
    shares = " ".join(f"{share:.2f}" for share in result.acceptance_per_position)
    assert len(result.acceptance_per_position) == 3
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
    assert summed.drafted[1:] == results[2].stats.drafted[1:]
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
    cold = generate(model, conversation.prompt[:-1], GREEDY, depth=0)
    assert second.token_ids == cold.token_ids
    if switches != (False, True) or not model.can_draft:
        message = [*model.tokenizer.encode("Go on.", parse_special=False)]
        assert second.num_prompt_tokens - second.num_reused_tokens <= len(message) + 16
