"""The settings file: what it may say, and what is said about one that is wrong."""

from pathlib import Path

import pytest

from mtplx.config import (
    MODEL_SETTINGS,
    TOP_SETTINGS,
    Config,
    checked_config,
    parsed,
    read_config,
    setting_at,
)
from mtplx.errors import ConfigError, FileAccessError

WHOLE = b"""
model = "big"
folders = ["~/models", "/mnt/all of them/\xc3\xbc"]
temperature = 0.5
stop = ["END"]
depth = "off"

[aliases]
big = "owner/name"

[models.big]
temperature = 0.6
head = "h.safetensors"

[models."owner/other.gguf"]
top_k = 20
"""


def test_a_whole_file_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every part of it, with ~ as the home folder and lists as tuples."""
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "config.toml"
    path.write_bytes(b"\xef\xbb\xbf" + WHOLE)
    assert read_config(path) == Config(
        path=path,
        model="big",
        folders=(tmp_path / "models", Path("/mnt/all of them/ü")),
        aliases={"big": "owner/name"},
        settings={"temperature": 0.5, "stop": ("END",), "depth": 0},
        models={
            "big": {"temperature": 0.6, "head": "h.safetensors"},
            "owner/other.gguf": {"top_k": 20},
        },
    )


def test_no_file_sets_nothing(tmp_path: Path) -> None:
    """Neither does a folder that is not there."""
    for path in (tmp_path / "config.toml", tmp_path / "no" / "config.toml"):
        assert read_config(path) == Config(path)


def test_a_user_without_a_home_has_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is no reason not to run."""

    def nowhere() -> Path:
        raise FileAccessError("no home folder")

    monkeypatch.setattr("mtplx.config.config_dir", nowhere)
    assert read_config() == Config()


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"a = = 3", "line 1, column 5"),
        (b"temperature = 0.5\n\nmodel = 'x", "line 3, column 11"),
        (b"model = 'x'\nmodel = 'y'\n", "line 2, column 12"),
        (b"# \xc3\xbc\nmodel = '\xff'\n", "line 2, column 10: byte 0xff"),
        (b"a = " + b"[" * 5000, "nests too deeply"),
    ],
)
def test_broken_toml_is_one_line_with_line_and_column(content: bytes, place: str) -> None:
    """Counted from 1, in characters, with the file's name."""
    with pytest.raises(ConfigError, match=r"/x/config\.toml") as caught:
        parsed(content, Path("/x/config.toml"))
    assert place in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("temprature = 1", "no setting 'temprature'. Did you mean 'temperature'?"),
        ("alias = {}", "Did you mean 'aliases'?"),
        ("folder = []", "Did you mean 'folders'?"),
        ("zzz = 1", "There is no setting 'zzz'. There are: aliases, depth,"),
        ("head = 'x'", "'head' has to stand under [models.NAME]"),
        ("[models.a]\nfolders = []", "[models.a]: The setting 'folders' has to stand at the top"),
        ("[models.a]\ntop-p = 1", "Did you mean 'top_p'?"),
        ("[model.a]\ntop_p = 1", "under [models.NAME]"),
        ("temperature = 'hot'", "temperature is 'hot', but must be a number from 0 to 1e9"),
        ("temperature = nan", "temperature is nan"),
        ("temperature = true", "temperature is True"),
        ("[models.a]\ntop_k = -3", "[models.a]: top_k is -3"),
        ("depth = 'deep'", "depth is 'deep'"),
        ("depth = true", "depth is True"),
        ("depth = 99", "depth is 99, but must be a whole number from 0 to 16"),
        ("model = ''", "model is ''"),
        ("folders = 'a'", "must be a list of texts"),
        ("folders = [1]", "an entry of folders is 1"),
        ("stop = 'a'", "stop is 'a'"),
        ("law = 'luck'", "law is 'luck'"),
        ("models = 3", "must be a table: [models]"),
        ("[models]\na = 3", "must be a table: [models.a]"),
        ("[aliases]\n'a/b' = 'c'", "'a/b' cannot be an alias"),
        ("[aliases]\n'-a' = 'c'", "'-a' cannot be an alias"),
        ("[aliases]\na = 3", "the alias a is 3"),
        ("logit_bias = {}", "There is no setting 'logit_bias'"),
        ("processors = []", "There is no setting 'processors'"),
    ],
)
def test_what_is_no_setting_is_named_with_what_was_meant(content: str, told: str) -> None:
    """The file, the key or table, the value, and what it may be."""
    path = Path("/x/config.toml")
    with pytest.raises(ConfigError) as caught:
        checked_config(parsed(content.encode(), path), path)
    assert str(caught.value).startswith("/x/config.toml: ")
    assert told in str(caught.value)
    assert caught.value.exit_code == 2


def test_every_sampling_field_that_is_plain_data_can_be_set() -> None:
    """What can be said with a flag can be kept, but for what belongs to one request."""
    needed = {"temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_tokens", "seed"}
    assert needed | {"depth", "system", "model", "folders"} <= TOP_SETTINGS.keys()
    assert needed | {"depth", "system", "head"} <= MODEL_SETTINGS.keys()
    kinds = {name: setting_at((name,)).kind for name in ("law", "stop", "top_p", "folders")}
    assert kinds == {"law": "text", "stop": "texts", "top_p": "value", "folders": "texts"}


def test_a_folder_in_the_files_place_is_named(tmp_path: Path) -> None:
    """It is not taken for a user without settings."""
    with pytest.raises(FileAccessError, match="it is a folder, not a file"):
        read_config(tmp_path)
