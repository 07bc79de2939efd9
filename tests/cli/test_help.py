"""Each verb's help ends in examples, and every one of them can be typed."""

import os
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from mtplx.cli.app import VERBS, root_command, run, verb_command
from mtplx.cli.examples import EXAMPLES, EXIT_CODES
from tests.cli.conftest import ROOT, Run

LINES = [(verb, line) for verb, lines in EXAMPLES.items() for line in lines]


def every_verb() -> set[str]:
    found = set(VERBS)
    for name in VERBS:
        module = import_module(f"mtplx.cli.{name.replace('-', '_')}")
        found |= {f"{name} {subverb}" for subverb in getattr(module, "SUBVERBS", ())}
    return found


def test_every_verb_has_examples() -> None:
    """Those within verbs, too; and there are none of verbs that do not exist."""
    assert EXAMPLES.keys() == every_verb()
    assert all(EXAMPLES.values())


@pytest.mark.parametrize("verb", sorted(EXAMPLES))
def test_examples_are_shown_line_by_line(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Not filled into paragraphs."""
    assert run([*verb.split(), "--help"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line for line in EXAMPLES[verb] if f"    {line}" not in shown] == []


@pytest.mark.parametrize(("verb", "line"), LINES)
def test_an_example_is_a_command_line_that_is_understood(
    verb: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the verb it stands with, where it begins with one: its options and arguments exist."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "notes.txt").touch()
    words = shlex.split(line)
    if words[0] != "mtplx":
        assert f"$(mtplx {verb.split()[0]}" in line
        return
    words = words[1 : next((i for i, word in enumerate(words) if word in "<>"), None)]
    assert words[: len(verb.split())] == verb.split() or verb in ("models", "config")
    root = root_command().make_context("mtplx", [])
    command = verb_command(words[0])
    context = command.make_context(words[0], words[1:], root)
    if hasattr(command, "commands"):
        inner = command.commands[words[1]]
        inner.make_context(words[1], words[2:], context)


def test_exit_codes_are_documented_and_true(mtplx: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """In the root's help and in the manual, each with a case that ends so."""
    run(["--help"])
    shown = capsys.readouterr().out
    manual = (ROOT / "docs" / "cli.md").read_text()
    for code in EXIT_CODES:
        assert f"    {code:<5}" in shown
        assert f"| {code} |" in manual
    assert mtplx("config", "path").code == 0
    assert mtplx("models", "path", "owner/name").code == 1
    assert mtplx("config", "set", "nonsense", "1").code == 2


def test_the_manual_names_every_verb_and_setting() -> None:
    """Nothing is added without a word about it."""
    from mtplx.config import MODEL_SETTINGS, TOP_SETTINGS

    manual = (ROOT / "docs" / "cli.md").read_text()
    assert [verb for verb in every_verb() if f"mtplx {verb}" not in manual] == []
    assert [name for name in {*TOP_SETTINGS, *MODEL_SETTINGS} if f"`{name}`" not in manual] == []


def test_whoever_stops_reading_is_no_error(home: dict[str, str]) -> None:
    """A pipe that is closed ends the program without a word, with the code that stands for it."""
    command = f"{shlex.quote(sys.executable)} -m mtplx --help | true; echo ${{PIPESTATUS[0]}}"
    ran = subprocess.run(
        ["bash", "-c", command],
        env=home,
        cwd=home["HOME"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stderr == ""
    assert ran.stdout.strip() in ("0", "141")


def test_help_of_every_verb_is_quick(home: dict[str, str]) -> None:
    """Under 0.6 s of processor time on cores that others use as well, and without MLX."""
    for verb in ("chat", "models", "config"):
        before = os.times()
        command = [sys.executable, "-X", "importtime", "-m", "mtplx", verb, "--help"]
        ran = subprocess.run(command, env=home, capture_output=True, text=True, check=True)
        after = os.times()
        spent = after.children_user + after.children_system
        assert spent - before.children_user - before.children_system < 0.6, verb
        imported = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
        assert not imported & {"mlx.core", "numpy", "gguf", "mlx_lm", "tokenizers"}
