"""Somebody who means ill at the terminal: random keys, pastes, signals, resizes, kills.

    python -m tests.chat.hostile SECONDS [SEED]

runs it for as long as wanted. What the terminal showed last is printed where something is wrong.
"""

import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from mtplx.chat.archive import read_conversation
from mtplx.chat.commands import COMMANDS
from tests.chat.typist import Typist, at_terminal
from tests.tiny_gguf import write_model

WORDS = [
    "hello",
    "/",
    "//",
    '"""',
    "字",
    "👨\u200d👩\u200d👧",
    "é",
    "\\",
    " ",
    "`" * 3,
    "**",
    "a" * 300,
]
KEYS = [
    b"\r", b"\x1b\r", b"\x1b[A", b"\x1b[B", b"\x1b[D", b"\t", b"\x7f", b"\x01", b"\x05", b"\x0b",
    b"\x0c", b"\x0f", b"\x12", b"\x15", b"\x17", b"\x19", b"\x1b", b"\x1b[3~", b"\x18\x05", b"\xff",
    b"\x1b[200~", b"\x1b[201~", b"\x00", b"\x1b[5~", b"\x1f", b"\x14",
]  # fmt: skip
ARGUMENTS = [
    "", "on", "off", "hide", "drop", "stop", "lookup", "max", "auto", "500", "3", "x", "-1", "md",
    "json", "temperature 1", "temperature 0", "seed 5", "top_k zzz", "max_tokens 60", "stop \"b\"",
    "talk", "other", "words.txt", "tiny.gguf", "missing", "字", "../../etc/passwd", "/etc/passwd",
]  # fmt: skip
STRIDE_S = 0.03  # between two acts, so that some of them meet a reply


class Hostile:
    """One of them. typist: at the program as it runs now."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.typist: Typist | None = None
        self._acts: list[tuple[int, Callable[[Typist], None]]] = [
            (30, self._type),
            (30, self._press),
            (25, self._command),
            (15, self._say),
            (10, self._paste),
            (10, lambda typist: typist.press(b"\x03")),
            (5, lambda typist: typist.signal(signal.SIGINT)),
            (8, self._resize),
            (3, self._stop_and_go),
            (1, lambda typist: typist.press(b"\x03\x04")),
        ]

    def act(self, typist: Typist) -> None:
        """Do one thing."""
        weights = [weight for weight, _ in self._acts]
        (_, act) = self.random.choices(self._acts, weights)[0]
        act(typist)
        typist.read_for(self.random.random() * 2 * STRIDE_S)

    def _type(self, typist: Typist) -> None:
        typist.press("".join(self.random.choices(WORDS, k=self.random.randint(1, 4))))

    def _press(self, typist: Typist) -> None:
        typist.press(b"".join(self.random.choices(KEYS, k=self.random.randint(1, 3))))

    def _command(self, typist: Typist) -> None:
        name = self.random.choice(list(COMMANDS))
        typist.press(b"\x1b[201~\x03")
        typist.say(f"/{name} {self.random.choice(ARGUMENTS)}".rstrip())

    def _say(self, typist: Typist) -> None:
        typist.press(b"\x1b[201~\x03")
        typist.say("tell me " + self.random.choice(WORDS))
        typist.read_for(self.random.choice([0.0, 0.1, 1.0]))

    def _paste(self, typist: Typist) -> None:
        lines = self.random.choices(WORDS, k=self.random.randint(1, 40))
        typist.paste("\n".join(lines))

    def _resize(self, typist: Typist) -> None:
        columns = self.random.choice([1, 2, 10, 19, 20, 40, 80, 200])
        typist.resize(columns, self.random.choice([1, 2, 5, 6, 24, 60]))

    def _stop_and_go(self, typist: Typist) -> None:
        typist.signal(signal.SIGSTOP)
        time.sleep(0.05)
        typist.signal(signal.SIGCONT)


def torment(seconds: float, seed: int, home: Path) -> int:
    """Do it for so long; how many processes that took. AssertionError for what is not in order."""
    hostile, deadline, num_processes = Hostile(seed), time.monotonic() + seconds, 0
    model = write_model(home / "tiny.gguf")
    (home / "words.txt").write_text("some words\n")
    while time.monotonic() < deadline:
        num_processes += 1
        resumes = ["--resume"] if list(conversations(home)) else []
        arguments = [*resumes, "--model", model, "--max-tokens", "200"]
        with at_terminal(arguments, home, VISUAL="true") as typist:
            life_s = hostile.random.choice([4.0, 8.0, 60.0])
            _live(hostile, typist, min(deadline, time.monotonic() + life_s))
        check_files(home)
    return num_processes


def _live(hostile: Hostile, typist: Typist, until: float) -> None:
    """One process, which is left in some way at the end."""
    typist.expect("MTP|Traceback" if hostile.random.random() < 0.8 else "/help|Traceback")
    while time.monotonic() < until and not typist.has_ended():
        with suppress(ProcessLookupError):
            hostile.act(typist)
    death = hostile.random.choice(["kill", "terminate", "leave", "leave"])
    if not typist.has_ended():
        if death == "leave":
            _leave(typist)
        else:
            typist.signal(signal.SIGKILL if death == "kill" else signal.SIGTERM)
    typist.read_for(0.2)
    shown = typist.output.decode(errors="replace")
    assert "Traceback" not in shown, shown[-5000:]
    assert "Unhandled exception" not in shown, shown[-5000:]
    try:
        code = typist.exit_code()
    except AssertionError as error:
        raise AssertionError(f"{error}\nAfter the keys {typist.pressed[-500:]!r}") from error
    assert code in (0, -signal.SIGKILL, 128 + signal.SIGTERM), (code, shown[-2000:])


def _leave(typist: Typist) -> None:
    """Until it has: keys that an editor is open for are the editor's."""
    for _ in range(20):
        typist.press(b"\x1b[201~\x03")
        typist.read_for(0.3)
        typist.press(b"\x03\x15\x04")
        typist.read_for(0.3)
        if typist.has_ended():
            return


def conversations(home: Path) -> list[Path]:
    return list((home / "DATA" / "mtplx" / "conversations").glob("*.jsonl"))


def check_files(home: Path) -> None:
    """Every conversation can be read, and people and model take turns in it."""
    for path in conversations(home):
        messages = read_conversation(path).transcript.messages
        roles = [message.role for message in messages]
        assert roles == (["user", "assistant"] * len(roles))[: len(roles)], path


def summary(home: Path) -> str:
    """What the files hold, by kind of record."""
    kinds = Counter(
        json.loads(line)["type"]
        for path in conversations(home)
        for line in path.read_text("utf-8").splitlines()
    )
    return f"{len(conversations(home))} conversations: {dict(kinds.most_common())}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        chosen = int(sys.argv[2]) if len(sys.argv) > 2 else 1
        number = torment(float(sys.argv[1]), chosen, Path(folder))
        print(f"{number} processes, {summary(Path(folder))}")
