"""What fits into the context and into memory, and what is said where it does not."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mtplx.chat import session
from mtplx.chat.context import Fitted, Room, fit
from mtplx.chat.memory import KEPT_FREE_BYTES, cache_bytes_per_token, free_bytes, tokens_that_fit
from mtplx.chat.report import closing
from mtplx.chat.session import Conversation
from mtplx.chat.settings import Settings
from mtplx.errors import MemoryLimitError, PromptTooLongError
from mtplx.loading.load import LoadedModel, load
from mtplx.params import SamplingParams
from mtplx.text.template import Message
from tests.chat.conversations import GREEDY, say
from tests.tiny_gguf import DIMS, write_model

PER_TOKEN = 2 * DIMS.num_layers * DIMS.num_kv_heads * DIMS.head_dim * 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(write_model(tmp_path_factory.mktemp("model") / "tiny.gguf"))


@pytest.fixture
def fitted(model: LoadedModel) -> Callable[..., Fitted]:
    """`fit` for turns of about 50 tokens each, the system prompt before them."""

    def fitted(num_turns: int, room: Room, *, max_tokens: int = 10, drops: bool = False) -> Fitted:
        turns = [
            message
            for i in range(num_turns)
            for message in (Message("user", f"turn {i}"), Message("assistant", "ok"))
        ]
        prompt = [Message("system", "Be kind."), *turns, Message("user", "last")]
        return fit(model.tokenizer, prompt, {}, room, max_tokens=max_tokens, drops=drops)

    return fitted


def test_a_reply_has_what_the_prompt_leaves(fitted: Callable[..., Fitted]) -> None:
    """Prompt and reply together are never longer than the room, and max_tokens stays a limit."""
    whole = fitted(4, Room(1000))
    length = len(whole.token_ids)
    assert (whole.max_tokens, whole.num_dropped) == (10, 0)
    assert fitted(4, Room(length + 3)).max_tokens == 3
    with pytest.raises(PromptTooLongError, match=f"{length} tokens.*room for {length - 1}"):
        fitted(4, Room(length))


def test_turns_are_dropped_in_pairs_until_half_is_free(
    model: LoadedModel, fitted: Callable[..., Fitted]
) -> None:
    """The oldest go, user and assistant together; the system prompt and the last message stay."""
    length = len(fitted(8, Room(1000)).token_ids)
    assert fitted(8, Room(length + 10), drops=True).num_dropped == 0
    less = fitted(8, Room(length + 5), drops=True)
    assert less.num_dropped % 2 == 0
    assert len(less.token_ids) <= (length + 5) // 2
    text = model.tokenizer.decode(less.token_ids)
    assert "Be kind." in text
    assert "turn 0" not in text
    assert text.endswith("user: lastassistant: ")


def test_a_message_that_never_fits_is_refused_though_turns_could_go(
    fitted: Callable[..., Fitted],
) -> None:
    """Dropping stops at the last message, and what is too long then is an error."""
    with pytest.raises(PromptTooLongError, match="Shorten the message"):
        fitted(8, Room(20), drops=True)


def test_the_largest_context_that_memory_holds_is_named(fitted: Callable[..., Fitted]) -> None:
    """Where the memory is what is too small, the error says so and how much it holds."""
    with pytest.raises(MemoryLimitError, match="memory that is free now holds 29 at most"):
        fitted(8, Room(30, is_memory=True))


def test_what_a_token_takes_is_measured(model: LoadedModel) -> None:
    """Keys and values of all layers, in bytes."""
    assert cache_bytes_per_token(model.target) == PER_TOKEN


def test_some_memory_is_left_to_others() -> None:
    """Free memory but for a reserve counts, and what the caches hold already."""
    assert tokens_that_fit(10, 0, KEPT_FREE_BYTES + 1000) == 100
    assert tokens_that_fit(10, 500, KEPT_FREE_BYTES) == 50
    assert tokens_that_fit(10, 500, 0) == 50
    assert free_bytes() > 0


def test_growing_stops_before_the_memory_is_full(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reply ends where no more fits, the line says so, and a longer message is refused."""
    monkeypatch.setattr(session, "free_bytes", lambda: KEPT_FREE_BYTES + 60 * PER_TOKEN)
    endless = SamplingParams(temperature=0, max_tokens=10_000, logit_bias={1: float("-inf")})
    conversation = Conversation(model, Settings(endless))
    result = say(conversation, "Hello")
    assert result.num_prompt_tokens + result.num_tokens == 60
    assert "no memory is free" in closing(conversation, result.text, result)
    with pytest.raises(MemoryLimitError):
        list(conversation.begin("x" * 500)(lambda: False))
    assert conversation.take_back() == "x" * 500


def test_the_closing_line_warns_before_the_context_is_full(
    model: LoadedModel, tmp_path: Path
) -> None:
    """From nine tenths on, the line tells how full the context is."""
    conversation = Conversation(model, Settings(GREEDY))
    early = say(conversation, "Hello")
    assert "full" not in closing(conversation, "a", early)
    late = say(conversation, "x" * 880)
    assert "% full" in closing(conversation, "a", late)
