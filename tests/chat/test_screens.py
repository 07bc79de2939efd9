"""What the terminal looks like, kept as text that was looked at."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mtplx.chat.reply_view import ReplyView
from mtplx.chat.terminal import Terminal
from mtplx.text.tags import KNOWN_TAGS, Part
from tests.chat.screen import Screen, check_snapshot
from tests.chat.typist import Typist, at_terminal
from tests.tiny_gguf import write_model

TAGS = (KNOWN_TAGS[0], next(tags for tags in KNOWN_TAGS if tags.part is Part.TOOL_CALL))
REPLY = """<think>
The user wants a plan. Short is better, and the word 漢字 has to be explained along the way.
</think>

# A plan for the week 👨\u200d👩\u200d👧

1. **Monday**: read about 漢字, the characters that Japanese took over from Chinese, for an hour.
2. *Tuesday*: write `print("漢字")` and look at what comes out of it 👍🏽.

> Quoted text keeps its mark, also in the lines that the width makes of it.

```python
def greet(name: str) -> str:
    return f"こんにちは, {name}! This line of code is wider than most terminals are."
```

| day | hours |
|-----|-------|
| Monday | 1 |

한국어 단어는 공백에서만 줄을 바꿉니다, 그래서 단어가 나뉘지 않습니다.
<tool_call>
{"name": "calendar", "arguments": {"day": "Monday"}}
</tool_call>"""


@pytest.fixture(params=[(80, 48), (40, 60)], ids=["80", "40"])
def screen(request: pytest.FixtureRequest) -> Iterator[Screen]:
    found = Screen(*request.param)
    yield found
    found.close()


def show(screen: Screen) -> Terminal:
    """A question and its reply, in pieces of a token's length, with the line below."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", screen)
        patch.setenv("TERM", "xterm-256color")
        patch.delenv("NO_COLOR", raising=False)
        terminal = Terminal()
    terminal.line("> Make a plan for my week.", indent=2)
    terminal.spacing()
    view = ReplyView(terminal, TAGS, None, shows_thinking=True, keep=lambda part, text: None)
    for start in range(0, len(REPLY), 4):
        view.feed(REPLY[start : start + 4])
        terminal.status.show(f"model · {start}/8,192 · 17.1/s · 1.90 a round · depth 2")
    view.finish()
    return terminal


def test_a_reply_while_it_comes(screen: Screen) -> None:
    """Reasoning set off, Markdown painted, code whole, wide characters whole, the line below."""
    terminal = show(screen)
    columns = screen.size().columns
    check_snapshot(f"reply-{columns}", "\n".join(screen.lines()))
    terminal.status.close()
    assert "8,192" not in screen.text()


def test_nothing_but_text_and_paint_is_left_of_the_line(screen: Screen) -> None:
    """Without the line the screen has the same text, and the whole of the code's line."""
    terminal = show(screen)
    terminal.status.close()
    with_line = screen.text()
    code = next(line for line in REPLY.split("\n") if "こんにちは" in line)
    assert code.replace(" ", "") in with_line.replace("\n", "").replace(" ", "")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "no_color"), [(80, ""), (40, "1")])
def test_the_program_itself(tiny: Path, tmp_path: Path, columns: int, no_color: str) -> None:
    """The first screen and the help, in a wide terminal and in a narrow one without colours."""
    with at_terminal(
        ["--model", tiny], tmp_path, columns=columns, rows=100, NO_COLOR=no_color
    ) as typist:
        typist.expect("MTP")
        typist.at_prompt()
        typist.say("/help")
        typist.expect("Ctrl-D")
        typist.at_prompt()
        typist.read_for(0.3)
        check_snapshot(f"help-{columns}", stable(typist))
        painted = {code for code in typist.output.split(b"\x1b[")[1:] if b"m" in code[:6]}
        if no_color:
            assert {code.partition(b"m")[0] for code in painted} <= {b"", b"0"}


def stable(typist: Typist) -> str:
    """The screen without what differs from run to run: where the model is."""
    lines = typist.shown()
    start = next(i for i, line in enumerate(lines) if "MTP" in line)
    end = lines.index("", start) - 1
    return "\n".join([*lines[:start], "(no head)", *lines[end + 1 :]]).rstrip()
