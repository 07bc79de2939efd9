"""Which model is meant where none is named: asked only of somebody who can answer."""

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from mtplx.cli import choose
from mtplx.cli.choose import pick_model
from mtplx.loading.local_models import LocalModel

HERE = [
    LocalModel("smollm2", Path("/a"), "llama Q4_1, GGUF", 98_000_000, "MTPLX's cache", True),
    LocalModel("owner/name", Path("/b"), "qwen3 4-bit", 2_300_000_000, "Hugging Face cache", False),
    LocalModel("broken", Path("/c"), "GGUF", 1, "/c", False, "damaged"),
]


@pytest.fixture(autouse=True)
def _a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def picked(
    monkeypatch: pytest.MonkeyPatch,
    typed: str = "",
    *,
    here: list[LocalModel] = HERE,
    seen: bool = True,
) -> str:
    """seen: somebody is at the terminal."""
    monkeypatch.setattr("mtplx.loading.local_models.local_models", lambda places: here)
    monkeypatch.setattr(choose, "is_terminal", lambda stream: seen)
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    return pick_model("smollm2")


@pytest.mark.parametrize(
    ("typed", "model"),
    [
        ("2\n", "owner/name"),
        ("owner/name\n", "owner/name"),
        ("\n", "smollm2"),
        ("7\nx\n 1 \n", "smollm2"),
    ],
)
def test_several_models_are_offered(
    typed: str, model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By number or name, Enter for the usual one; what is no answer is asked again."""
    assert picked(monkeypatch, typed) == model
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "2  owner/name  qwen3 4-bit, 2.3 GB" in shown.err
    assert "broken" not in shown.err
    assert shown.err.count("is none of them") == typed.count("\n") - 1


def test_the_usual_model_is_offered_where_it_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one on the disk does not hide it, nor is it fetched unasked."""
    assert picked(monkeypatch, "1\n", here=HERE[1:]) == "owner/name"
    assert picked(monkeypatch, "\n", here=HERE[1:]) == "smollm2"


def test_nobody_is_asked_where_nobody_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script gets the usual model, and no word of others."""
    assert picked(monkeypatch, "2\n", seen=False) == "smollm2"
    assert picked(monkeypatch, here=[], seen=False) == "smollm2"
    assert capsys.readouterr().err == ""


def test_the_settings_answer_the_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever has set a model is not asked."""
    (tmp_path / "mtplx").mkdir()
    (tmp_path / "mtplx" / "config.toml").write_text("model = 'smollm2'\n")
    assert picked(monkeypatch, "2\n") == "smollm2"
    assert capsys.readouterr().err == ""


def test_one_model_is_no_question(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The usual one alone."""
    assert picked(monkeypatch, "2\n", here=HERE[:1]) == "smollm2"
    assert capsys.readouterr().err == ""


def test_a_first_run_tells_of_a_better_model_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, by the memory of this machine; none where no better one fits."""
    monkeypatch.setattr("mtplx.loading.memory.memory_limit_bytes", lambda: 64 * 10**9)
    assert picked(monkeypatch, here=[]) == "smollm2"
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "`mtplx chat --model " in told
    assert "64 GB" in told
    monkeypatch.setattr("mtplx.loading.memory.memory_limit_bytes", lambda: 10**8)
    assert picked(monkeypatch, here=[]) == "smollm2"
    assert capsys.readouterr().err == ""


def test_the_end_of_input_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-D is no answer, and no error."""
    with pytest.raises(typer.Exit) as left:
        picked(monkeypatch, "")
    assert left.value.exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize(("typed", "gone"), [(b"n\n", False), (b"y\n", True)])
def test_removing_asks_at_a_terminal(
    typed: bytes, gone: bool, home: dict[str, str], tiny: Path
) -> None:
    """With the size and the place; no is no."""
    path = Path(home["XDG_CACHE_HOME"]) / "mtplx" / "models" / "mine.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(tiny.read_bytes())
    master, terminal = pty.openpty()
    command = [sys.executable, "-m", "mtplx", "models", "rm", str(path)]
    with subprocess.Popen(
        command, stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=home
    ) as process:
        os.write(master, typed)
        out, err = process.communicate(timeout=120)
    os.close(master)
    os.close(terminal)
    assert process.returncode == 0
    assert f"Remove {path} ({tiny.stat().st_size / 1e6:.1f} MB, {path})?".encode() in err
    assert out.startswith(b"Removed" if gone else b"Kept")
    assert path.exists() != gone
