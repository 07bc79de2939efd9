"""Models that think before they speak: switches, history, what is computed again, what is shown."""

import re
from pathlib import Path

import pytest

from mtplx.chat.reply_view import ReplyView, Said
from mtplx.chat.report import opening
from mtplx.chat.session import Begun, Conversation
from mtplx.chat.settings import Settings
from mtplx.chat.terminal import Terminal
from mtplx.errors import UsageError
from mtplx.generate import EncodedPrompt, generate
from mtplx.loading.load import LoadedModel, load
from mtplx.text.prompt import encode_chat
from mtplx.text.tags import KNOWN_TAGS, Part, Tags
from mtplx.text.template import Message
from tests.chat.conversations import GREEDY, run, say
from tests.chat.typist import CONTROL_C, CONTROL_O, at_terminal
from tests.tiny_gguf import TEMPLATE, TOKENS, write_model

# As published ones do: earlier reasoning is taken out, the tag is opened unless it is switched off.
THINKING = (
    "{% for message in messages %}<|start|>{{ message.role }}: "
    "{{ message.content.split('</think>')[-1].lstrip('\n') }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant: <think>\n"
    "{% if enable_thinking is defined and not enable_thinking %}\n</think>\n\n{% endif %}"
    "{% endif %}"
)
THINK, CALL = KNOWN_TAGS[0], next(tags for tags in KNOWN_TAGS if tags.part is Part.TOOL_CALL)
REPLY = '<think>\nLet me\nsee.\n</think>\n\nIt is **5**.\n<tool_call>\n{"a": 1}\n</tool_call>'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", template=THINKING))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", template=TEMPLATE))


def begun(conversation: Conversation) -> Begun:
    """How the next reply begins."""
    first = next(iter(conversation.begin("Hello")(lambda: False)))
    conversation.take_back()
    assert isinstance(first, Begun)
    return first


def test_the_switch_reaches_the_template(model: LoadedModel) -> None:
    """With thinking off the prompt closes the tag at once; on, the reply begins inside it."""
    conversation = Conversation(model, Settings(GREEDY))
    default = begun(conversation)
    run(conversation, "/think on")
    assert begun(conversation) == default
    assert default.inside == THINK
    run(conversation, "/think off")
    off = begun(conversation)
    assert off.inside is None
    assert off.fitted.token_ids != default.fitted.token_ids


def test_a_template_without_the_switch_is_told(plain: LoadedModel) -> None:
    """/think off is an error that says so, on and --think are followed by a line that does."""
    conversation = Conversation(plain, Settings(GREEDY))
    with pytest.raises(UsageError, match="no switch for thinking"):
        run(conversation, "/think off")
    assert "no switch for thinking" in run(conversation, "/think on").lines[0]
    asked = Conversation(plain, Settings(GREEDY, thinks=False))
    assert any("no switch for thinking" in line for line in opening(asked))
    assert not any("no switch" in line for line in opening(conversation))


def test_hiding_leaves_the_switch_alone(model: LoadedModel) -> None:
    """/think hide folds what is thought, and the model still thinks."""
    conversation = Conversation(model, Settings(GREEDY))
    run(conversation, "/think hide")
    assert conversation.settings.shows_thinking is False
    assert begun(conversation).inside == THINK


@pytest.mark.parametrize("thinks", [None, True, False])
def test_a_later_turn_of_a_thinking_model_computes_only_what_is_new(
    model: LoadedModel, thinks: bool | None
) -> None:
    """Turn 2 equals a cold run, and computes its message, the reply before and a few tokens."""
    conversation = Conversation(model, Settings(GREEDY, thinks=thinks))
    thought = say(conversation, "Tell me something.").text
    conversation.messages[-1] = Message("assistant", "Well, this.", thought)
    second = say(conversation, "Go on.")
    prompt = encode_chat(
        model.tokenizer, conversation.transcript.prompt[:-1], **conversation.switches
    )
    assert second.token_ids == generate(model, EncodedPrompt(prompt), GREEDY).token_ids
    num_template = len("<|start|>assistant: <think>\n\n</think>\n\n") + 8
    num_new = len("Well, this.") + len("user: Go on.") + num_template
    assert second.num_prompt_tokens - second.num_reused_tokens <= num_new


def view_of(text: str, cut: int, *, shows: bool, tags: tuple[Tags, ...] = (THINK, CALL)) -> Said:
    """A reply shown on standard output in pieces."""
    view = ReplyView(Terminal(), tags, None, shows_thinking=shows, keep=lambda part, text: None)
    for start in range(0, len(text), cut):
        view.feed(text[start : start + cut])
    return view.finish()


@pytest.mark.parametrize("cut", [1, 7, 1000])
def test_reasoning_is_set_apart_and_not_part_of_what_was_said(
    capsys: pytest.CaptureFixture[str], cut: int
) -> None:
    """Thoughts are marked line by line; content keeps the call of a tool, reasoning is apart."""
    said = view_of(REPLY, cut, shows=True)
    assert said == Said('It is **5**.\n<tool_call>\n{"a": 1}\n</tool_call>\n', "Let me\nsee.")
    assert capsys.readouterr().out == ('| Let me\n| see.\nIt is **5**.\n```json\n{"a": 1}\n```\n')


def test_folded_reasoning_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Hidden, there is how long it took in place of what was thought, which is kept."""
    assert view_of(REPLY, 3, shows=False).reasoning == "Let me\nsee."
    shown = capsys.readouterr().out
    assert re.match(r"\(thought for \d+ s\)\nIt is \*\*5\*\*\.\n", shown)
    assert "Let me" not in shown


def test_folding_can_be_changed_while_it_comes(capsys: pytest.CaptureFixture[str]) -> None:
    """Unfolded in the middle, all that was thought so far is shown, and then the rest."""
    view = ReplyView(Terminal(), (THINK,), None, shows_thinking=False, keep=lambda part, text: None)
    view.feed("<think>\nfirst\nsec")
    view.fold()
    view.feed("ond\n</think>\nanswer")
    view.finish()
    assert capsys.readouterr().out == "| first\n| second\nanswer\n"


def test_a_reply_that_ends_while_thinking_has_no_content(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Cut by its length inside the tag, everything was thought and nothing said."""
    view = ReplyView(Terminal(), (THINK,), THINK, shows_thinking=True, keep=lambda part, text: None)
    view.feed("still thi")
    view.feed("nking")
    assert view.finish() == Said("", "still thinking")
    assert capsys.readouterr().out == "| still thinking\n"


def test_every_stretch_is_kept_as_it_comes() -> None:
    """What `keep` was given adds up to the reply, part by part."""
    kept = {"reasoning": "", "text": ""}

    def keep(part: str, text: str) -> None:
        kept[part] += text

    view = ReplyView(Terminal(), (THINK, CALL), None, shows_thinking=False, keep=keep)
    for character in REPLY:
        view.feed(character)
    said = view.finish()
    assert Said(kept["text"], kept["reasoning"]) == said


@pytest.mark.slow
def test_control_o_folds_what_is_thought(tmp_path: Path) -> None:
    """In a reply that begins with a thought, Ctrl-O ends the bars and brings them back."""
    path = write_model(tmp_path / "tiny.gguf", template=THINKING)
    always = [f"--logit-bias={TOKENS.index(letter)}=1e6" for letter in ("c", "\u0120")]
    arguments = ["--model", path, "--temp", "1e4", "--top-p", "1", *always]
    with at_terminal(arguments, tmp_path) as typist:
        typist.expect("MTP")
        typist.say("Hello")
        typist.expect("│ [c ]+")
        typist.press(CONTROL_O)
        typist.expect("Ctrl-O shows it")
        typist.press(CONTROL_O)
        typist.expect("│ [c ]+")
        typist.press(CONTROL_C)
        typist.expect("stopped")
        typist.at_prompt()
        typist.say("/think hide")
        typist.expect("it is folded")
        typist.at_prompt()
        typist.say("/regen")
        typist.expect("thinking, Ctrl-O")
        typist.press(CONTROL_C)
        assert "│" not in typist.expect(r"\(thought for \d+ s\)")
