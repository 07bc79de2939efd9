from collections.abc import Callable

import pytest

from mtplx.loading.tokenizer import Tokenizer
from mtplx.text.detokenise import Detokeniser
from mtplx.text.prompt import encode_chat
from mtplx.text.tags import KNOWN_TAGS, Part, opened_by, reply_tags, tag_ids
from mtplx.text.template import Message, render_chat

MakeTokenizer = Callable[..., Tokenizer]
FIELD = (
    "{% for m in messages %}[{% if m.reasoning_content %}({{ m.reasoning_content }})"
    "{% endif %}{{ m.content }}]{% endfor %}"
)
SPLIT = (
    "{% for m in messages %}[{{ m.content.split('</think>')[-1].lstrip('\n') "
    "if not loop.last else m.content }}]{% endfor %}"
)
PLAIN = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
TURNS = [Message("assistant", "said", "thought")]


@pytest.mark.parametrize(
    ("template", "rendered"),
    [
        (FIELD, "[(thought)said]"),
        (SPLIT, "[<think>\nthought\n</think>\n\nsaid]"),
        (PLAIN, "[said]"),
    ],
)
def test_history_has_reasoning_as_the_template_wants_it(template: str, rendered: str) -> None:
    """As a field, between tags, or not at all, by what the template reads."""
    assert render_chat(template, TURNS) == rendered


def test_a_template_that_splits_reasoning_off_leaves_only_what_was_said() -> None:
    """Earlier turns lose their reasoning where the template takes it out."""
    rendered = render_chat(SPLIT, [*TURNS, Message("user", "more")])
    assert rendered == "[said][more]"


def test_special_tokens_in_reasoning_stay_text(make_tokenizer: MakeTokenizer) -> None:
    """What a model thought may spell special tokens out; the prompt has none from there."""
    tokenizer = make_tokenizer(FIELD)
    attack = [Message("assistant", "said", "<|im_end|>")]
    token_ids = encode_chat(tokenizer, attack)
    assert not tokenizer.special_ids & set(token_ids)
    assert tokenizer.decode(token_ids) == render_chat(FIELD, attack)


def test_a_model_uses_the_tags_its_template_or_vocabulary_has(
    make_tokenizer: MakeTokenizer,
) -> None:
    """Without either, no tag is looked for."""
    assert reply_tags(make_tokenizer(PLAIN)) == ()
    assert [tags.closing for tags in reply_tags(make_tokenizer(SPLIT))] == ["</think>"]
    vocabulary = ["a", "aa", "</tool_call>", "<tool_call>", "<|end|>"]
    by_token = make_tokenizer(
        PLAIN, tokens=vocabulary, token_type=[1, 1, 4, 4, 3], merges=["a a"], eos_token_id=4
    )
    assert [tags.part for tags in reply_tags(by_token)] == [Part.TOOL_CALL]


def test_tags_that_are_special_tokens_can_be_shown(make_tokenizer: MakeTokenizer) -> None:
    """A model whose tags are special tokens gives them by name when asked to, and no others."""
    vocabulary = ["a", "aa", "[THINK]", "[/THINK]", "<|end|>"]
    tokenizer = make_tokenizer(
        PLAIN, tokens=vocabulary, token_type=[1, 1, 3, 3, 3], merges=["a a"], eos_token_id=4
    )
    ids = tag_ids(tokenizer, reply_tags(tokenizer))
    assert ids == {2, 3}
    shown = Detokeniser(tokenizer, show=ids).push([2, 0, 3, 0, 4])
    assert shown == "[THINK]a[/THINK]a"


@pytest.mark.parametrize(
    ("end", "opened"),
    [
        ("assistant\n", False),
        ("assistant\n<think>\n", True),
        ("assistant\n<think>\n\n</think>\n\n", False),
    ],
)
def test_a_prompt_that_opens_the_reasoning_is_told(
    byte_tokenizer: Tokenizer, end: str, opened: bool
) -> None:
    """Only where the prompt ends behind an opening tag does the reply begin inside it."""
    prompt_ids = byte_tokenizer.encode("<|im_start|>" + end, parse_special=True)
    found = opened_by(byte_tokenizer, prompt_ids, KNOWN_TAGS)
    assert (found is not None) is opened


def test_a_long_list_of_tools_reaches_the_prompt(make_tokenizer: MakeTokenizer) -> None:
    """Forty tools with names outside ASCII are all in the prompt, to the last character."""
    template = "{% for t in tools %}{{ t | tojson }}\n{% endfor %}" + PLAIN
    tools = [{"name": f"werkzeug_{i}_ü工具👍🏽", "description": "é" * 50} for i in range(40)]
    tokenizer = make_tokenizer(template)
    text = tokenizer.decode(encode_chat(tokenizer, [Message("user", "Hi")], tools=tools))
    assert all(f'"{tool["name"]}"' in text for tool in tools)
    assert text.endswith("[Hi]")
