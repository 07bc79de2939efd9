"""Commands that change how replies are made."""

import pytest

from mtplx.chat.session import Conversation
from mtplx.chat.settings import Settings
from mtplx.errors import SamplingError, UsageError
from mtplx.loading.load import LoadedModel, load
from mtplx.params import LAW_NAMES, SamplingParams
from tests.chat.conversations import GREEDY, run, say
from tests.tiny_gguf import write_head, write_model


@pytest.fixture(scope="module")
def headless(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(write_model(tmp_path_factory.mktemp("model") / "tiny.gguf"))


@pytest.fixture(scope="module")
def headed(headless: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    head = write_head(tmp_path_factory.mktemp("head") / "head.safetensors", headless.path)
    return load(headless.path, head=head)


def test_mtp_is_switched_live(headed: LoadedModel) -> None:
    """`/mtp off` makes the next depth 0 and `/mtp on` brings back the one that was set."""
    conversation = Conversation(headed, Settings(depth=3))
    assert run(conversation, "/mtp off").lines == ["MTP off."]
    assert conversation.depth == 0
    assert run(conversation, "/mtp on").lines == ["MTP head, depth 3."]
    assert run(conversation, "/mtp greedy").lines == ["MTP head, depth 3."]
    assert conversation.settings.draft.mode == "greedy"
    assert run(conversation, "/mtp").lines == ["MTP head, depth 3."]


def test_depth_is_set_live(headed: LoadedModel) -> None:
    """`/depth` takes a number, the default again, and off."""
    conversation = Conversation(headed, Settings())
    default = conversation.depth
    assert run(conversation, "/depth 5").lines == ["MTP head, depth 5."]
    assert conversation.depth == 5
    run(conversation, "/depth off")
    assert conversation.depth == 0
    run(conversation, "/depth auto")
    assert conversation.depth == default


def test_drafting_without_a_head_says_why_not(headless: LoadedModel) -> None:
    """Where there is no head, switching it on is an error with the reason, and lookups still do."""
    conversation = Conversation(headless, Settings())
    assert headless.no_head_reason is not None
    for line in ("/mtp on", "/depth 2"):
        with pytest.raises(UsageError) as caught:
            run(conversation, line)
        assert headless.no_head_reason in str(caught.value)
    run(conversation, "/mtp lookup")
    assert conversation.depth == "auto"


def test_the_law_is_changed_live(headed: LoadedModel) -> None:
    """`/law` names the one in use and the others, and sets one for the next reply."""
    conversation = Conversation(headed, Settings(SamplingParams(max_tokens=24, seed=5)))
    shown = run(conversation, "/law").lines[0]
    assert all(name in shown for name in LAW_NAMES)
    for name in LAW_NAMES:
        run(conversation, f"/law {name}")
        assert say(conversation, "Hello").law == name


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("temperature 0.25", "temperature", 0.25),
        ("temp 1", "temperature", 1.0),
        ("top_k 40", "top_k", 40),
        ("seed 7", "seed", 7),
        ("seed none", "seed", None),
        ("penalty_window off", "penalty_window", None),
        ("stop END", "stop", ("END",)),
        ("stop 5", "stop", ("5",)),
        ('stop "5"', "stop", ("5",)),
        ("dry_breakers true", "dry_breakers", ("true",)),
        ('stop ["a b", "\\n\\n"]', "stop", ("a b", "\n\n")),
        ("stop_ids 5", "stop_ids", (5,)),
        ("logit_bias 65=-inf 66=2", "logit_bias", {65: float("-inf"), 66: 2.0}),
        ('logit_bias {"65": 1}', "logit_bias", {65: 1.0}),
        ("law rejection", "law", "rejection"),
        ("top_p default", "top_p", 1.0),
    ],
)
def test_sampling_is_set_live(headless: LoadedModel, text: str, field: str, value: object) -> None:
    """`/set FIELD VALUE` takes numbers, texts, lists and biases, and shows what it is now."""
    conversation = Conversation(headless, Settings(SamplingParams(top_p=0.9)))
    lines = run(conversation, f"/set {text}").lines
    assert getattr(conversation.settings.params, field) == value
    assert lines[0].startswith(field)
    assert run(conversation, f"/set {field}").lines == lines


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("temprature 1", "Did you mean temperature"),
        ("temperature hot", "temperature is 'hot'"),
        ("temperature -1", "temperature is -1"),
        ("temperature NaN", "temperature is nan"),
        ("top_k 1.5", "top_k is 1.5"),
        ("max_tokens 0", "max_tokens is 0"),
        ("logit_bias x=y", "logit_bias"),
        ("processors x", "processors"),
    ],
)
def test_a_wrong_field_or_value_is_an_error(headless: LoadedModel, text: str, message: str) -> None:
    """The error names the field, the value and what it may be; nothing is changed."""
    conversation = Conversation(headless, Settings())
    with pytest.raises(SamplingError, match=message):
        run(conversation, f"/set {text}")
    assert conversation.settings == Settings()


def test_a_seed_that_is_set_holds_from_the_next_reply_on(headless: LoadedModel) -> None:
    """Two conversations that set the same seed have the same replies from there."""
    replies = []
    for _ in range(2):
        conversation = Conversation(headless, Settings(SamplingParams(temperature=1.0)))
        run(conversation, "/set max_tokens 12")
        run(conversation, "/set seed 3")
        replies.append(say(conversation, "Hello").text)
    assert replies[0] == replies[1]


def test_all_sampling_fields_are_listed(headless: LoadedModel) -> None:
    """`/set` alone shows every field with its value."""
    lines = run(Conversation(headless, Settings()), "/set").lines
    shown = dict(line.split(None, 1) for line in lines)
    assert {"temperature", "seed", "law", "stop", "logit_bias"} <= shown.keys()
    assert shown["temperature"].strip() == "0.7"


def test_the_system_prompt_is_set_shown_and_removed(headless: LoadedModel) -> None:
    """`/system TEXT` goes before all messages from the next prompt on, `off` takes it away."""
    conversation = Conversation(headless, Settings())
    run(conversation, "/system  Be brief, please.")
    prompt = conversation.transcript.prompt
    assert [(m.role, m.content) for m in prompt] == [("system", "Be brief, please.")]
    assert run(conversation, "/system").lines[0] == "Be brief, please."
    run(conversation, "/system off")
    assert conversation.transcript.prompt == []


def test_the_context_is_set_and_counted(headless: LoadedModel) -> None:
    """`/context` sets size and what happens when it is full; `/tokens` adds up to it."""
    conversation = Conversation(headless, Settings(GREEDY, system="Be kind."))
    assert "oldest turns are left out" in run(conversation, "/context drop").lines[0]
    assert "500 tokens" in run(conversation, "/context 500").lines[0]
    say(conversation, "Hello")
    rows = {line[:11].strip(): line[11:] for line in run(conversation, "/tokens").lines}
    assert rows["User"] == "5 in 1"
    assert rows["System"] == "8 in 1"
    used = int(rows["Prompt"].split()[0])
    assert rows["Left"] == f"{500 - used} of 500"
    assert "1,024 tokens" in run(conversation, "/context max").lines[0]
