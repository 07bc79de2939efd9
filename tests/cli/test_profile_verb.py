"""`mtplx profile` as a command: what becomes of a profile once it is saved."""

import json
from pathlib import Path

import pytest

from mtplx.cli.app import run
from tests.cli.conftest import Tune, profiles


def test_profiles_are_listed_shown_carried_and_forgotten(
    tune: Tune, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole life of a profile after it was saved."""
    assert run(["profile", "list"]) == 0
    assert "There are no profiles" in capsys.readouterr().err
    assert run(["profile", "show"]) == 1
    assert tune() == 0
    name = profiles(config)[0].stem
    capsys.readouterr()
    assert run(["profile", "list"]) == 0
    assert name in (out := capsys.readouterr().out)
    assert "It fits this machine." in out
    assert run(["profile", "show", name, "--chart", str(tmp_path / "c.svg")]) == 0
    assert "draft step" in capsys.readouterr().out
    assert (tmp_path / "c.svg").is_file()
    assert run(["profile", "show", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == name
    assert run(["profile", "export", name, str(tmp_path / "p.toml")]) == 0
    assert run(["profile", "forget", name[:6]]) == 0
    assert profiles(config) == []
    assert run(["profile", "import", str(tmp_path / "p.toml")]) == 0
    assert profiles(config)[0].read_bytes() == (tmp_path / "p.toml").read_bytes()
    assert run(["profile", "show", "nothing"]) == 2
    assert name in capsys.readouterr().err
    assert run(["profile", "forget", "--all"]) == 0
    assert profiles(config) == []


def test_a_broken_profile_is_listed_and_can_be_forgotten(
    tune: Tune, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody has to find the file by hand."""
    assert tune() == 0
    (path,) = profiles(config)
    path.write_text("[[[")
    capsys.readouterr()
    assert run(["profile", "list"]) == 0
    assert "line 1" in capsys.readouterr().out
    assert run(["profile", "show"]) == 1
    assert run(["profile", "forget", path.stem]) == 0
    assert profiles(config) == []
