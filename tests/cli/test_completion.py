"""Tab completion, as the scripts that Typer installs ask for it."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mtplx.cli.app import VERBS
from tests.cli.conftest import Run

CASES = [
    ("mtplx mo", {"models"}),
    ("mtplx models ", {"list", "pull", "rm", "path"}),
    ("mtplx config show --mo", {"--model"}),
    ("mtplx config set tempera", {"temperature"}),
    ("mtplx chat --model smol", {"smollm2"}),
    ("mtplx models pull bi", {"big"}),
    ("mtplx generate --tem", {"--temp"}),
]


@pytest.fixture(autouse=True)
def _some_names(home: dict[str, str], tiny: Path, tmp_path: Path) -> None:
    """An alias, and a file whose name no shell should see."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / 'bi"$(touch evil)`.gguf').write_bytes(tiny.read_bytes())
    file = Path(home["XDG_CONFIG_HOME"]) / "mtplx" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(f'folders = ["{mine}"]\n[aliases]\nbig = "owner/name"\n')


def asked(shell: str, line: str) -> dict[str, str]:
    """What a shell's script puts into the environment."""
    environment = {"_MTPLX_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": line}
    if shell == "bash":
        words = shlex.split(line)
        place = len(words) if line.endswith(" ") else len(words) - 1
        environment |= {"COMP_WORDS": line, "COMP_CWORD": str(place)}
    return {**environment, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}


def offered(shell: str, answer: str) -> set[str]:
    """The words in what the program says to a shell."""
    if shell == "zsh":
        return {part.split('"')[0] for part in answer.split('("')[1:]} | {
            line.split('"')[1] for line in answer.splitlines()[1:] if line.startswith('"')
        }
    return {line.split("\t")[0] for line in answer.splitlines() if line}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(("line", "words"), CASES[:4])
def test_words_are_offered_in_each_shells_form(
    mtplx: Run, shell: str, line: str, words: set[str]
) -> None:
    """Verbs, their own verbs, options and settings."""
    ran = mtplx(**asked(shell, line))
    assert (ran.code, ran.err) == (0, "")
    assert offered(shell, ran.out.decode()) == words


@pytest.mark.parametrize(("line", "words"), CASES[4:])
def test_models_and_options_of_requests_are_offered(mtplx: Run, line: str, words: set[str]) -> None:
    """Aliases and models by name; a name with signs of a shell's own is left out."""
    ran = mtplx(**asked("bash", line))
    assert (ran.code, ran.err) == (0, "")
    assert words <= offered("bash", ran.out.decode())
    assert "evil" not in ran.out.decode()


def test_a_broken_settings_file_does_not_write_into_the_line(
    mtplx: Run, home: dict[str, str]
) -> None:
    """What cannot be completed is not, in silence."""
    (Path(home["XDG_CONFIG_HOME"]) / "mtplx" / "config.toml").write_text("= =")
    ran = mtplx(**asked("bash", "mtplx chat --model smo"))
    assert (ran.out.strip(), ran.err) == (b"", "")


def test_completing_imports_no_mlx(home: dict[str, str]) -> None:
    """Nor anything else that takes long: somebody waits with a finger on Tab."""
    command = [sys.executable, "-X", "importtime", "-m", "mtplx"]
    environment = {**home, **asked("bash", "mtplx chat --model smo")}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "smollm2" in ran.stdout
    imported = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
    assert not imported & {"mlx.core", "numpy", "gguf", "mlx_lm", "tokenizers"}


def in_shell(shell: str, home: dict[str, str], tmp_path: Path, script: str) -> str:
    """What a real shell prints, with `mtplx` on its path and the completion script in `$script`."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    program = tmp_path / "bin" / "mtplx"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m mtplx "$@"\n')
    program.chmod(0o755)
    environment = {**home, "PATH": f"{program.parent}{os.pathsep}{home['PATH']}"}
    source = {**environment, "_MTPLX_COMPLETE": f"source_{shell}"}
    text = subprocess.run(["mtplx"], env=source, capture_output=True, text=True, check=True).stdout
    file = tmp_path / "completion"
    file.write_text(text)
    ran = subprocess.run(
        [shell, "-c", script, shell, str(file)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.stderr == ""
    return ran.stdout


def test_bash_completes(home: dict[str, str], tmp_path: Path) -> None:
    """The script that --show-completion prints works in the shell itself."""
    script = """
    source "$1"; complete -p mtplx > /dev/null
    COMP_WORDS=(mtplx models p); COMP_CWORD=2
    _mtplx_completion mtplx
    printf '%s ' "${COMPREPLY[@]}"
    """
    assert in_shell("bash", home, tmp_path, script) == "pull path "


def test_fish_completes(home: dict[str, str], tmp_path: Path) -> None:
    """As above."""
    script = 'source $argv[2]; complete --do-complete "mtplx models p"'
    words = [line.split("\t")[0] for line in in_shell("fish", home, tmp_path, script).splitlines()]
    assert words == ["path", "pull"]


def test_zsh_completes(home: dict[str, str], tmp_path: Path) -> None:
    """As above, with what the line editor would be told in place of the line editor."""
    script = """
    compdef() { :; }; source "$1"
    _arguments() { print -r -- "$*"; }
    words=(mtplx models p); CURRENT=3
    _mtplx_completion
    """
    answer = in_shell("zsh", home, tmp_path, script)
    assert '"pull":' in answer
    assert '"path":' in answer


def test_every_verb_is_offered(mtplx: Run) -> None:
    """With its line of help."""
    answer = mtplx(**asked("fish", "mtplx ")).out.decode()
    assert {line.split("\t")[0] for line in answer.splitlines()} == set(VERBS)
