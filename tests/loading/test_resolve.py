"""A model's name leads to its files, or to one line that says what is there instead."""

import os
from pathlib import Path

import pytest

from mtplx.errors import ConfigError, FileAccessError, ModelNotFoundError
from mtplx.loading.catalogue import SMOLLM2
from mtplx.loading.resolve import HubName, Places, checkpoint_at, hub_name, locate, resolve
from tests.loading.hub_layout import CHECKPOINT, put_repo


def make(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"GGUF" if name.endswith(".gguf") else b"{}")
    return folder


def test_a_gguf_file_is_itself(tmp_path: Path) -> None:
    """The magic decides, not the name."""
    make(tmp_path, "model.gguf")
    (tmp_path / "odd name").write_bytes(b"GGUF\3\0\0\0")
    assert resolve(str(tmp_path / "model.gguf")) == tmp_path / "model.gguf"
    assert resolve(str(tmp_path / "odd name")) == tmp_path / "odd name"


@pytest.mark.parametrize("name", ["{}", "{}/", "{}/../m"])
def test_a_folder_of_safetensors_is_itself(tmp_path: Path, name: str) -> None:
    """A folder with config.json and safetensors is a checkpoint, however its path is written."""
    folder = make(tmp_path / "m", "config.json", "model.safetensors")
    assert resolve(name.format(folder)).samefile(folder)


def test_the_home_folder_may_be_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """~ means what it means in a shell, also where no shell expanded it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    make(tmp_path, "model.gguf")
    assert resolve("~/model.gguf") == tmp_path / "model.gguf"


def test_a_link_is_followed(tmp_path: Path) -> None:
    """Weights kept elsewhere are found through a symbolic link."""
    make(tmp_path / "far", "model.gguf")
    (tmp_path / "near.gguf").symlink_to(tmp_path / "far" / "model.gguf")
    assert resolve(str(tmp_path / "near.gguf")) == tmp_path / "near.gguf"


def test_a_folder_stands_for_its_only_gguf_file(tmp_path: Path) -> None:
    """One GGUF file in a folder is what was meant, config.json beside it or not."""
    assert checkpoint_at(make(tmp_path, "a.gguf", "config.json")) == tmp_path / "a.gguf"


def test_what_exists_comes_before_an_alias_and_a_hub_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file or folder that happens to have an alias's or an id's name wins."""
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "smollm2", "config.json", "model.safetensors")
    make(tmp_path / "owner" / "name", "config.json", "model.safetensors")
    assert resolve("smollm2") == Path("smollm2")
    assert resolve("owner/name") == Path("owner/name")


def test_an_alias_leads_to_the_cached_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was fetched before is found without the network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    from mtplx.paths import cache_dir

    file = make(cache_dir() / "models", SMOLLM2.file_name) / SMOLLM2.file_name
    os.truncate(file, SMOLLM2.num_bytes)
    assert resolve("smollm2") == file


def test_a_file_that_is_not_gguf_is_said_to_be_none(tmp_path: Path) -> None:
    """A pointer or web page in a model's place is named with how it starts."""
    (tmp_path / "model.gguf").write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(ModelNotFoundError, match=r"model\.gguf is not a GGUF file.*b'vers'"):
        resolve(str(tmp_path / "model.gguf"))


@pytest.mark.parametrize("content", [b"", b"GG"])
def test_a_file_too_short_to_be_gguf_is_refused(tmp_path: Path, content: bytes) -> None:
    """An empty or cut-off file is refused by name."""
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(ModelNotFoundError, match=r"m\.gguf is not a GGUF file"):
        resolve(str(tmp_path / "m.gguf"))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_part_of_a_checkpoint_points_to_its_folder(tmp_path: Path, name: str) -> None:
    """Who names one file of a checkpoint is told the folder to give."""
    make(tmp_path, "config.json", "model.safetensors")
    with pytest.raises(ModelNotFoundError, match=f"Give its folder: {tmp_path}"):
        resolve(str(tmp_path / name))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([], r"no config\.json.*\(empty\)"),
        (["notes.txt"], r"no config\.json, \*\.safetensors or \*\.gguf \(notes\.txt\)"),
        (["model.safetensors"], r"no config\.json; add"),
        (["config.json", "pytorch_model.bin"], r"config\.json but no \*\.safetensors"),
        (["a.gguf", "b.gguf"], r"2 GGUF models\. Give one of them: a\.gguf, b\.gguf"),
    ],
)
def test_a_folder_that_is_no_checkpoint_says_what_it_holds(
    tmp_path: Path, names: list[str], said: str
) -> None:
    """What is missing is named, and what is there instead."""
    with pytest.raises(ModelNotFoundError, match=said):
        resolve(str(make(tmp_path / "folder", *names)))


def test_a_missing_path_names_the_nearest_file(tmp_path: Path) -> None:
    """A slip in a file's name is answered with the file that was meant."""
    make(tmp_path, "SmolLM2-Q4_1.gguf")
    with pytest.raises(ModelNotFoundError, match=r"Did you mean .*/SmolLM2-Q4_1\.gguf"):
        resolve(str(tmp_path / "SmolLM2-Q4-1.gguf"))


def test_a_missing_folder_names_the_part_that_exists(tmp_path: Path) -> None:
    """A path that is wrong half way is answered with how far it is right."""
    with pytest.raises(ModelNotFoundError, match=f"{tmp_path} exists"):
        resolve(str(tmp_path / "no" / "such" / "model.gguf"))


@pytest.mark.parametrize("slip", ["smollm", "SmolLM2", "smolm2"])
def test_a_slip_in_an_alias_is_answered_with_the_alias(
    slip: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The alias that was meant is offered."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError, match="Did you mean 'smollm2'"):
        resolve(slip)


@pytest.mark.parametrize(
    "name", ["", "  ", "nonsense", "a\0b", "x" * 5000, "a/b/c/d", "./x", "..."]
)
def test_any_other_name_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is typed, the answer says how a model can be named, in one line."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError, match="Name a model with its path") as caught:
        resolve(name)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_rights_is_named(tmp_path: Path) -> None:
    """No right to read is not taken for a missing model."""
    make(tmp_path, "m.gguf")
    (tmp_path / "m.gguf").chmod(0)
    with pytest.raises(FileAccessError, match=r"m\.gguf.*permission denied"):
        resolve(str(tmp_path / "m.gguf"))


def test_the_users_aliases_lead_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To paths and to other aliases; what exists under the name goes before them."""
    monkeypatch.chdir(tmp_path)
    file = make(tmp_path / "models", "m.gguf") / "m.gguf"
    places = Places((), {"big": "biggest", "biggest": str(file), "taken": str(file)})
    assert resolve("big", places=places) == file
    make(tmp_path / "taken", "own.gguf")
    assert resolve("taken", places=places) == Path("taken/own.gguf")


def test_aliases_in_a_circle_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are named; an alias of its own name is none."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="a -> b -> c -> b lead back"):
        resolve("a", places=Places((), {"a": "b", "b": "c", "c": "b"}))
    with pytest.raises(ModelNotFoundError, match="no model 'a'"):
        resolve("a", places=Places((), {"a": "a"}))


def test_a_slip_in_an_alias_of_ones_own_is_answered_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with one that is built in."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError, match="Did you mean 'qwen-big'"):
        resolve("qwen-bg", places=Places((), {"qwen-big": "owner/name"}))


def test_names_in_the_users_folders_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files, folders and ids by their path below it, in order, without the network."""
    monkeypatch.chdir(tmp_path)
    one, two = tmp_path / "one", tmp_path / "two größer"
    make(one / "owner" / "name", "config.json", "model.safetensors")
    make(two / "owner" / "name", "config.json", "model.safetensors")
    make(two / "owner" / "files", "q4.gguf", "q8.gguf")
    make(two, "ü.gguf")
    places = Places((tmp_path / "nowhere", one, two))
    assert resolve("owner/name", places=places) == one / "owner" / "name"
    assert resolve("owner/files/q8.gguf", places=places) == two / "owner" / "files" / "q8.gguf"
    assert resolve("ü.gguf", places=places) == two / "ü.gguf"
    with pytest.raises(ModelNotFoundError, match="2 GGUF models"):
        resolve("owner/files", places=places)


@pytest.mark.parametrize("where", ["folder", "hub"])
def test_a_copy_of_a_known_model_is_not_fetched_again(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smollm2_path: Path
) -> None:
    """One in a folder of the user's, or in the hub's cache; another content is not taken for it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("mtplx.loading.resolve.hub_cache_dir", lambda: tmp_path / "hub")
    if where == "hub":
        snapshot = put_repo(tmp_path / "hub", SMOLLM2.hub_repo, {SMOLLM2.file_name: b"GGUF"})
        copy = snapshot / SMOLLM2.file_name
        copy.unlink()
    else:
        copy = make(tmp_path / "mine" / "deep") / SMOLLM2.file_name
    places = Places((tmp_path / "mine",))
    copy.write_bytes(b"GGUF")
    os.truncate(copy, SMOLLM2.num_bytes)
    assert locate("smollm2", places=places) is None
    copy.unlink()
    copy.symlink_to(smollm2_path)
    assert locate("smollm2", places=places) == copy


def test_what_the_hubs_cache_holds_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By id, file and revision, without a client or the network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mtplx.loading.resolve.hub_cache_dir", lambda: tmp_path / "hub")
    snapshot = put_repo(tmp_path / "hub", "owner/name", {**CHECKPOINT, "b/q 4.gguf": b"GGUF"})
    assert resolve("owner/name") == snapshot
    assert resolve(f"owner/name@{'0' * 40}") == snapshot
    assert resolve("owner/name/b/q 4.gguf") == snapshot / "b" / "q 4.gguf"
    assert locate("owner/other") is None
    assert locate("owner/name@v2") is None


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("owner/name", HubName("owner/name", None, None)),
        ("owner/name@0123abc", HubName("owner/name", "0123abc", None)),
        ("o/n@v1.0/sub/Q4_K M ü.gguf", HubName("o/n", "v1.0", "sub/Q4_K M ü.gguf")),
        ("owner", None),
        ("./owner/name", None),
        ("owner/name/../../x.gguf", None),
        ("owner/name/file.bin", None),
        ("/owner/name", None),
    ],
)
def test_ids_are_told_from_paths(name: str, parts: HubName | None) -> None:
    """And never lead out of a repository."""
    assert hub_name(name) == parts


@pytest.mark.parametrize("name", ["~nobody-of-that-name/m.gguf", "~nobody-of-that-name"])
def test_the_home_of_nobody_is_no_place(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, as for any path that is not there."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError, match="There is no file or folder"):
        resolve(name)
