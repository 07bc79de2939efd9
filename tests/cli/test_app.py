import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import mtplx
from mtplx.cli.app import VERBS, run
from tests.cli.conftest import Run


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    """The root's help has a line for each verb."""
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    for name, line in VERBS.items():
        assert f"  {name} " in shown
        assert line in shown


@pytest.mark.parametrize("name", VERBS)
def test_verbs_have_the_help_they_are_listed_with(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each verb answers --help, and its docstring begins with its line in the list."""
    assert run([name, "--help"]) == 0
    assert "--help" in capsys.readouterr().out
    module = name.replace("-", "_")
    docstring = getattr(import_module(f"mtplx.cli.{module}"), module).__doc__
    assert docstring.split("\n")[0].strip() == VERBS[name]


def test_options_of_requests_are_the_same_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    """chat and generate take the same options for the model and for sampling."""
    shared = "--model --head --system --max-tokens --stop --depth --law --temp --top-p --top-k"
    shared += " --min-p --seed --repetition-penalty --presence-penalty --frequency-penalty"
    for verb in ("chat", "generate"):
        run([verb, "--help"])
        shown = capsys.readouterr().out
        assert [name for name in shared.split() if f"{name} " not in shown] == []


def test_no_arguments_show_the_help(mtplx: Run) -> None:
    """`mtplx` alone is a question, not a mistake."""
    ran = mtplx()
    assert ran.code == 0
    assert ran.out == mtplx("--help").out
    assert b"generate" in ran.out


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    """--version prints one line."""
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"mtplx {mtplx.__version__}\n"


def test_help_is_quick(home: dict[str, str]) -> None:
    """`mtplx --help` takes under 0.4 s of processor time, the best of three."""
    taken = []
    for _ in range(3):
        before = os.times()
        command = [sys.executable, "-m", "mtplx", "--help"]
        subprocess.run(command, env=home, stdout=subprocess.DEVNULL, check=True)
        after = os.times()
        spent = after.children_user + after.children_system
        taken.append(spent - before.children_user - before.children_system)
    assert min(taken) < 0.4


def test_mlx_that_cannot_be_imported_is_one_line(mtplx: Run, tmp_path: Path) -> None:
    """A broken MLX leads to the doctor, not to a traceback."""
    path = broken_mlx(tmp_path)
    ran = mtplx("generate", "--model", "smollm2", "hello", PYTHONPATH=path)
    assert ran.code == 1
    assert ran.err.startswith("mtplx: MLX cannot be imported: ")
    assert ran.err.count("\n") == 1
    assert "mtplx doctor" in ran.err


def test_doctor_works_without_mlx(mtplx: Run, tmp_path: Path) -> None:
    """It names what is wrong with MLX and ends with 1."""
    ran = mtplx("doctor", PYTHONPATH=broken_mlx(tmp_path))
    assert ran.code == 1
    assert ran.err == ""
    assert b"fix    mlx" in ran.out
    assert b"wrong architecture" in ran.out


def broken_mlx(folder: Path) -> str:
    """A search path on which MLX is a package that does not load."""
    package = folder / "broken" / "mlx"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    reason = "raise ImportError('wrong architecture (have x86_64, need arm64)', name='mlx.core')"
    (package / "core.py").write_text(reason)
    root = Path(__file__).parents[2]
    return os.pathsep.join([str(package.parent), str(root)])


def test_other_errors_keep_their_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fault of ours is not dressed up as the user's."""

    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("mtplx.cli.doctor.examine", fail)
    with pytest.raises(ZeroDivisionError):
        run(["doctor"])
    assert capsys.readouterr().err == ""
