"""Chat templates taken apart and put together again."""

from pathlib import Path

import pytest
from tokenizers import pre_tokenizers

from mtplx.errors import TrainingError
from mtplx.loading.gguf_file import open_gguf
from mtplx.loading.tokenizer import Tokenizer
from mtplx.loading.tokenizer_gguf import tokenizer_from_gguf
from mtplx.text.prompt import encode_chat
from mtplx.text.template import Message
from mtplx.training.framing import chat_framing

SPECIAL = ["<s>", "<|start|>", "<|end|>", "<|head|>", "<|body|>"]
LOOP = "{% for m in messages %}"
# What a turn is made of in the two families of templates that most models have.
ROLE_LINES = (
    "{% if messages[0].role != 'system' %}<|start|>system\nBe brief.<|end|>\n{% endif %}"
    + LOOP
    + "<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
HEADERS = (
    "<s>" + LOOP + "<|head|>{{ m.role }}<|body|>\n\n{{ m.content | trim }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|head|>assistant<|body|>\n\n{% endif %}"
)


def byte_tokenizer(template: str | None, **more: object) -> Tokenizer:
    """One whose tokens are single bytes and a few special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fields = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": [*SPECIAL, *alphabet, "ab"],
        "token_type": [3] * len(SPECIAL) + [1] * (len(alphabet) + 1),
        "merges": ["a b"],
        "bos_token_id": 0,
        "eos_token_id": 2,
        **more,
    }
    metadata = {f"tokenizer.ggml.{name}": value for name, value in fields.items()}
    return tokenizer_from_gguf(metadata | {"tokenizer.chat_template": template})


def assert_frames(tokenizer: Tokenizer) -> None:
    """Parts and messages in turn are what the template makes of the conversation."""
    framing = chat_framing(tokenizer)
    texts = ["What is a cab?", "A car.\nWith a driver.", "And <|end|> is?"]
    ask, reply, more = (tokenizer.encode(text, parse_special=False) for text in texts)
    roles = ("user", "assistant", "user")
    turns = [Message(role, text) for role, text in zip(roles, texts, strict=True)]
    opening = [*framing.before_user, *ask, *framing.before_reply]
    assert opening == encode_chat(tokenizer, turns[:1])
    assert framing.after_reply
    later = [*reply, *framing.after_reply, *more, *framing.before_reply]
    assert opening + later == encode_chat(tokenizer, turns)


@pytest.mark.parametrize("template", [ROLE_LINES, HEADERS], ids=["role lines", "headers"])
def test_framed_messages_are_the_templates_prompt(template: str) -> None:
    """A conversation put together from its parts is, token for token, what the template gives."""
    assert_frames(byte_tokenizer(template))


def test_the_default_models_template_is_framed(smollm2_path: Path) -> None:
    """SmolLM2's own template comes apart, its system message included."""
    tokenizer = tokenizer_from_gguf(open_gguf(smollm2_path).metadata)
    assert_frames(tokenizer)
    assert "SmolLM" in tokenizer.decode(chat_framing(tokenizer).before_user)


def test_the_reply_begins_after_the_end_of_the_message() -> None:
    """What follows a message starts with the token that ends it, so that open messages end."""
    framing = chat_framing(byte_tokenizer(ROLE_LINES))
    assert framing.end_ids == {2}
    assert framing.before_reply[0] == framing.after_reply[0] == 2


@pytest.mark.parametrize(
    "content",
    [
        "{{ m.content | upper }}",
        "{{ m.content[:2] }}",
        "{% if m.role == 'user' %}{{ m.content }}{% endif %}",
        "{{ m.content | reverse }}",
    ],
)
def test_a_template_that_changes_messages_cannot_be_used(content: str) -> None:
    """Upper case, cut, dropped and reversed messages are a training error, not bad framing."""
    tokenizer = byte_tokenizer(LOOP + "<|start|>" + content + "<|end|>{% endfor %}")
    with pytest.raises(TrainingError, match="changes or drops messages"):
        chat_framing(tokenizer)


def test_a_template_that_begins_otherwise_with_more_messages_cannot_be_used() -> None:
    """One conversation has one beginning."""
    tokenizer = byte_tokenizer("{{ messages | length }}" + ROLE_LINES)
    with pytest.raises(TrainingError, match="begins with depends"):
        chat_framing(tokenizer)


def test_a_template_that_turns_the_order_cannot_be_used() -> None:
    """Messages have to stand in the order they were said in."""
    reverse = "{% for m in messages | reverse %}<|start|>{{ m.content }}<|end|>{% endfor %}"
    with pytest.raises(TrainingError, match="changes or drops messages"):
        chat_framing(byte_tokenizer(reverse))


def test_no_template_frames_nothing() -> None:
    """A model without a template is given bare text."""
    framing = chat_framing(byte_tokenizer(None, bos_token_id=None))
    assert framing.before_user == framing.before_reply == framing.after_reply == ()
    assert framing.end_ids == {2}


def test_no_template_still_begins_with_the_token_that_begins_prompts() -> None:
    """What training sees begins as prompts do when the model serves."""
    tokenizer = byte_tokenizer(None, add_bos_token=True)
    assert tokenizer.encode_prompt("ab")[0] == 0
    assert chat_framing(tokenizer).before_user == (0,)
