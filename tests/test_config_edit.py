"""Changing a setting: that one, nothing else, and never half."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtplx.config_edit import set_setting, unset_setting, value_from
from mtplx.errors import ConfigError, FileAccessError

ROOT = Path(__file__).parents[1]
COMMENTED = """# mine
temperature = 0.5  # warm
folders = [
    "/a",  # the fast disk
]

[aliases]
big = "owner/name"  # eight billion

[models."owner/name"]
# careful
top_k = 20
"""
TOPS = st.sampled_from(
    [
        "temperature = 0.5 # warm",
        "# a comment",
        "",
        'model = "big"',
        'folders = [\n  "a",\n  "b",\n]',
        'system = """\nmany\nlines"""',
        "aliases = {big = 'x/y', c = 'd'}",
        "stop = ['x']",
    ]
)
TABLES = st.sampled_from(
    [
        "[aliases]\nbig = 'a/b' # alias\n",
        "[models.z]\n# note\ntop_p = 0.9\n",
        '[models."q/r s"]\ntop_k = 3\n\n# after\n',
        '[ models . "q/r s" ]\ndepth = "off"\n',
        "[models]\n",
        "[models.z]\n[models.w]\nseed = 1\n",
    ]
)
CHANGES: list[tuple[tuple[str, ...], object]] = [
    (("temperature",), 0.25),
    (("model",), "ü"),
    (("folders",), ["c"]),
    (("aliases", "q"), "u/v"),
    (("models", "z", "top_p"), 0.5),
    (("models", "neü/x", "top_k"), 7),
    (("models", "q/r s", "seed"), 5),
]


def without(tables: Any, keys: tuple[str, ...]) -> Any:
    """The tables with nothing at `keys`, and without tables that hold nothing."""
    if not isinstance(tables, dict):
        return tables
    rest = {name: value for name, value in tables.items() if (name,) != keys}
    inner = {
        name: without(value, keys[1:] if name == keys[0] else ("",)) for name, value in rest.items()
    }
    return {name: value for name, value in inner.items() if value != {}}


@settings(max_examples=120, deadline=None)
@given(
    st.lists(TOPS, unique=True, max_size=5), st.lists(TABLES, unique=True, max_size=3), st.data()
)
def test_a_change_is_that_change_and_no_other(
    tmp_path_factory: pytest.TempPathFactory,
    tops: list[str],
    tables: list[str],
    data: st.DataObject,
) -> None:
    """In whatever way a file is written: its other values and its comments stay, or it all does."""
    text = "\n".join(tops) + "\n" + "".join(tables)
    path = tmp_path_factory.mktemp("config") / "config.toml"
    path.write_text(text)
    keys, value = data.draw(st.sampled_from(CHANGES))
    sets = data.draw(st.booleans())
    try:
        before = tomllib.loads(text)
        if sets:
            set_setting(path, keys, value)
        else:
            unset_setting(path, keys)
    except (tomllib.TOMLDecodeError, ConfigError):
        assert path.read_text() == text
        return
    after = tomllib.loads(path.read_text())
    assert without(after, keys) == without(before, keys)
    found: Any = after
    for name in keys:
        found = found.get(name, {})
    assert found == (value if sets else {})
    comments = [line.partition("#")[2] for line in text.splitlines() if "#" in line]
    kept = path.read_text()
    assert all(comment in kept for comment in comments if keys[-1] not in text or sets)


def test_a_hand_written_file_keeps_its_form(tmp_path: Path) -> None:
    """Line for line, but for the one that changes."""
    path = tmp_path / "config.toml"
    path.write_text(COMMENTED)
    set_setting(path, ("temperature",), 0.7)
    set_setting(path, ("models", "owner/name", "top_k"), 40)
    expected = COMMENTED.replace("0.5", "0.7").replace("top_k = 20", "top_k = 40")
    assert path.read_text() == expected
    assert unset_setting(path, ("models", "owner/name", "top_k"))
    assert "# careful" in path.read_text()
    assert not unset_setting(path, ("models", "owner/name", "top_k"))


def test_the_file_and_its_folder_are_made(tmp_path: Path) -> None:
    """The first setting of a user needs no preparation; a value that is none makes no file."""
    path = tmp_path / "new" / "config.toml"
    with pytest.raises(ConfigError, match="temperature is 'hot'"):
        set_setting(path, ("temperature",), "hot")
    assert list(tmp_path.iterdir()) == []
    set_setting(path, ("models", "a b/ü.gguf", "temperature"), 0.5)
    assert tomllib.loads(path.read_text()) == {"models": {"a b/ü.gguf": {"temperature": 0.5}}}


@pytest.mark.parametrize("content", ["a = = 1", "temprature = 1", "temperature = 'hot'"])
def test_a_file_that_is_wrong_is_left_as_it_is(tmp_path: Path, content: str) -> None:
    """Nothing is lost by a command that meets a mistake made by hand."""
    path = tmp_path / "config.toml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"config\.toml"):
        set_setting(path, ("top_k",), 3)
    assert path.read_text() == content


def test_a_link_stays_one_and_rights_stay(tmp_path: Path) -> None:
    """Settings that are kept in another folder, for themselves alone."""
    real = tmp_path / "dotfiles" / "mtplx.toml"
    real.parent.mkdir()
    real.write_text("top_k = 3\n")
    real.chmod(0o600)
    link = tmp_path / "config.toml"
    link.symlink_to(real)
    set_setting(link, ("top_k",), 4)
    assert link.is_symlink()
    assert real.read_text() == "top_k = 4\n"
    assert real.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("keys", "words", "value"),
    [
        (("temperature",), ["0.5"], 0.5),
        (("top_k",), ["20"], 20),
        (("depth",), ["off"], "off"),
        (("model",), ["0.5"], "0.5"),
        (("system",), ["Answer briefly."], "Answer briefly."),
        (("law",), ["coupled"], "coupled"),
        (("folders",), ["~/a", "/b c"], ["~/a", "/b c"]),
        (("stop",), ["END"], ["END"]),
        (("aliases", "big"), ["owner/name"], "owner/name"),
        (("models", "big", "head"), ["h.safetensors"], "h.safetensors"),
    ],
)
def test_words_of_a_command_line_mean_values(
    keys: tuple[str, ...], words: list[str], value: object
) -> None:
    """Texts need no quotes, lists are words, numbers are numbers."""
    assert value_from(keys, words) == value


@pytest.mark.parametrize(
    ("keys", "words", "told"),
    [
        (("temperature",), ["0.5", "0.6"], "takes one value, but there were 2"),
        (("temperature",), ["0.5\ntop_k = 3"], "must be a number"),
        (("temperature",), ["hot"], "temperature is 'hot'"),
        (("temprature",), ["1"], "Did you mean 'temperature'"),
        (("aliases", "a/b"), ["x"], "cannot be an alias"),
        (("nonsense", "x"), ["1"], "There is no setting 'nonsense.x'"),
    ],
)
def test_words_that_mean_nothing_are_refused(
    keys: tuple[str, ...], words: list[str], told: str
) -> None:
    """Before any file is opened."""
    with pytest.raises(ConfigError) as caught:
        value_from(keys, words)
    assert told in str(caught.value)


_MANY = """
import sys
from pathlib import Path
from mtplx.config_edit import set_setting
for i in range(12):
    set_setting(Path(sys.argv[1]), ("models", f"{sys.argv[2]}{i}", "seed"), i)
"""


def test_two_processes_lose_nothing_of_each_other(tmp_path: Path) -> None:
    """Every change of both is there in the end."""
    path = tmp_path / "config.toml"
    processes = [
        subprocess.Popen([sys.executable, "-c", _MANY, str(path), name], cwd=ROOT) for name in "ab"
    ]
    assert [process.wait(120) for process in processes] == [0, 0]
    assert len(tomllib.loads(path.read_text())["models"]) == 24


def test_a_folder_that_cannot_be_written_is_named() -> None:
    """Also for the superuser, in a place where nobody may write."""
    if not os.path.isdir("/proc"):
        pytest.skip("needs a file system nobody may write")
    with pytest.raises(FileAccessError, match="/proc"):
        set_setting(Path("/proc/mtplx/config.toml"), ("top_k",), 3)


def test_a_form_that_cannot_be_changed_is_an_error(tmp_path: Path) -> None:
    """Tables within one line take no table more; the file stays as it is."""
    path = tmp_path / "config.toml"
    path.write_text("models = {a = {temperature = 1}}\n")
    with pytest.raises(ConfigError, match="edit it there"):
        set_setting(path, ("models", "c", "temperature"), 0.5)
    assert path.read_text() == "models = {a = {temperature = 1}}\n"
