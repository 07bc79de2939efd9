"""`mtplx config`: what it prints, writes and refuses."""

import json
import tomllib
from pathlib import Path

import pytest

from tests.cli.conftest import Run


def config_file(home: dict[str, str]) -> Path:
    return Path(home["XDG_CONFIG_HOME"]) / "mtplx" / "config.toml"


def test_settings_are_set_shown_and_unset(mtplx: Run, home: dict[str, str]) -> None:
    """One after the other, in the file that `path` names."""
    assert mtplx("config", "path").out.decode().strip() == str(config_file(home))
    assert b"(not there yet)" in mtplx("config", "show").out
    for words in (
        "set temperature 0.5",
        "set folders /a /b",
        "set aliases.big owner/name",
        "set --model big top_k 20",
        "set presence_penalty -- -0.5",
    ):
        ran = mtplx("config", *words.split())
        assert (ran.code, ran.out) == (0, b""), ran.err
    expected = {
        "temperature": 0.5,
        "folders": ["/a", "/b"],
        "presence_penalty": -0.5,
        "aliases": {"big": "owner/name"},
        "models": {"big": {"top_k": 20}},
    }
    assert tomllib.loads(config_file(home).read_text()) == expected
    shown = mtplx("config", "show").out.decode()
    assert tomllib.loads(shown) == expected  # its first line, the path, is a comment
    assert str(config_file(home)) in shown.splitlines()[0]
    assert mtplx("config", "unset", "-m", "big", "top_k").code == 0
    assert tomllib.loads(config_file(home).read_text())["models"] == {"big": {}}
    again = mtplx("config", "unset", "-m", "big", "top_k")
    assert (again.code, "top_k for big is not set" in again.err) == (2, True)


def test_every_value_is_shown_with_where_it_comes_from(
    mtplx: Run, home: dict[str, str], tiny: Path
) -> None:
    """For a model that is here, and as JSON."""
    mtplx("config", "set", "temperature", "0.5")
    mtplx("config", "set", "--model", tiny, "top_k", "20")
    shown = mtplx("config", "show", "--model", tiny).out.decode()
    lines = {line.split()[0]: line.split(maxsplit=2) for line in shown.splitlines()[2:]}
    assert lines["temperature"][1:] == ["0.5", "config.toml"]
    assert lines["top_k"][1:] == ["20", f"config.toml [models.{tiny}]"]
    assert lines["max_tokens"][1:] == ["1024", "all that the context leaves"]
    assert lines["min_p"][1:] == ["0.0", "built in"]
    whole = json.loads(mtplx("config", "show", "--model", tiny, "--json").out)
    assert whole["path"] == str(tiny)
    assert whole["values"]["top_k"] == {"value": 20, "source": f"config.toml [models.{tiny}]"}


def test_showing_a_model_that_is_not_here_fetches_nothing(mtplx: Run) -> None:
    """What is known without it is shown."""
    ran = mtplx("config", "show", "--model", "owner/name")
    assert ran.code == 0
    assert b"not on this machine" in ran.out.splitlines()[0]
    assert ran.err == ""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("set temprature 1", "Did you mean 'temperature'?"),
        ("set temperature hot", "temperature is 'hot'"),
        ("set temperature 1 2", "takes one value"),
        ("set models.big.top_k 1", "--model MODEL"),
        ("set --model big folders /a", "has to stand at the top"),
        ("unset temprature", "Did you mean 'temperature'?"),
        ("show --model smolm2", "Did you mean 'smollm2'"),
    ],
)
def test_what_cannot_be_meant_is_one_line(
    mtplx: Run, home: dict[str, str], words: str, told: str
) -> None:
    """And makes no file."""
    ran = mtplx("config", *words.split())
    assert ran.code in (1, 2)
    assert ran.err.startswith("mtplx: ")
    assert ran.err.count("\n") == 1
    assert told in ran.err
    assert not config_file(home).exists()


def test_a_broken_file_is_one_line_everywhere_but_where_it_does_not_matter(
    mtplx: Run, home: dict[str, str], tiny: Path
) -> None:
    """With line and column; help, the doctor and the file's own path work, and it is kept."""
    file = config_file(home)
    file.parent.mkdir(parents=True)
    file.write_text("temperature = 0.5\nmodel = = 'x'\n")
    for words in (["config", "show"], ["config", "set", "top_k", "3"], ["models", "list"]):
        ran = mtplx(*words)
        assert (ran.code, ran.out) == (2, b"")
        assert ran.err.startswith(f"mtplx: {file}, line 2, column 9: ")
        assert ran.err.count("\n") == 1
    ran = mtplx("--blas", "mlx", "generate", "--model", tiny, "hello")
    assert (ran.code, f"{file}, line 2" in ran.err) == (2, True)
    for words in (["config", "path"], ["generate", "--help"], ["--version"]):
        assert mtplx(*words).code == 0
    assert f"fix    settings  {file}, line 2" in mtplx("doctor").out.decode()
    assert file.read_text() == "temperature = 0.5\nmodel = = 'x'\n"


def test_settings_hold_for_a_request_and_flags_go_before_them(mtplx: Run, tiny: Path) -> None:
    """The model, an alias for it, and the length of a reply."""
    mtplx("config", "set", "aliases.mine", tiny)
    mtplx("config", "set", "model", "mine")
    mtplx("config", "set", "-m", tiny, "max_tokens", "3")
    plain = ("--blas", "mlx", "generate", "hello", "--json", "--no-stats")
    replies = [json.loads(mtplx(*plain, *more).out) for more in ([], ["--max-tokens", "2"])]
    assert [reply["model"] for reply in replies] == ["mine", "mine"]
    assert replies[0]["num_tokens"] <= 3
    assert replies[1]["num_tokens"] <= 2
    assert json.loads(mtplx("inspect", "--no-load", "--json").out)["path"] == str(tiny)
