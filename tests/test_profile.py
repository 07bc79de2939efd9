"""Profiles on the disk: what is written comes back, and nothing else is taken for one."""

import errno
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mtplx.errors import FileAccessError, MtplxError, ProfileError
from mtplx.profile import Profile, differences, exact_pattern, file_name
from mtplx.profile_file import as_toml, read_profile, write_profile
from mtplx.tuner.record import trials_of
from tests.tuner.profiles import KEY, scripted_profile

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def profile() -> Profile:
    return scripted_profile()


def test_a_profile_comes_back_as_it_was(profile: Profile, tmp_path: Path) -> None:
    """Key, choices, costs, acceptance and every trial; numbers to six digits."""
    path = write_profile(profile, tmp_path)
    once = read_profile(path)
    assert once.key == profile.key
    assert [c.depth for c in once.choices] == [c.depth for c in profile.choices]
    assert len(trials_of(once)) == len(trials_of(profile))
    assert once.curve.verify_s[0] == pytest.approx(profile.curve.verify_s[0], rel=1e-5)
    assert read_profile(write_profile(once, tmp_path)) == once


@pytest.mark.parametrize(
    ("column", "value"), [("tokens", "many"), ("rounds", 0), ("decode_s", 0.0), ("accepted", 3)]
)
def test_a_trial_that_cannot_be_is_told_by_its_row(
    column: str, value: object, profile: Profile
) -> None:
    """Instead of a speed made of it."""
    row = dict(zip(profile.trials.columns, profile.trials.rows[1], strict=True)) | {column: value}
    rows = (profile.trials.rows[0], tuple(row.values()), *profile.trials.rows[2:])
    edited = replace(profile, trials=replace(profile.trials, rows=rows))
    with pytest.raises(ProfileError, match=rf"Row 2 .* {column} "):
        trials_of(edited)


def test_a_profile_without_choices_is_refused(profile: Profile, tmp_path: Path) -> None:
    """Loading a model would have nothing to say of it."""
    path = write_profile(replace(profile, choices=()), tmp_path)
    with pytest.raises(ProfileError, match="choice is empty"):
        read_profile(path)


@pytest.mark.parametrize("window", [None, 512])
def test_a_window_comes_back(window: int | None, profile: Profile, tmp_path: Path) -> None:
    path = write_profile(replace(profile, window=window), tmp_path)
    assert read_profile(path).window == window


def test_a_window_of_nothing_is_refused(profile: Profile, tmp_path: Path) -> None:
    path = write_profile(replace(profile, window=0), tmp_path)
    with pytest.raises(ProfileError, match="draft_window is 0"):
        read_profile(path)


def test_tiles_come_back(profile: Profile, tmp_path: Path) -> None:
    """By packing; a profile without any has no table of them."""
    path = write_profile(replace(profile, tiles={"q4_k": (8, 1), "affine-4-64": (2, 4)}), tmp_path)
    assert read_profile(path).tiles == {"q4_k": (8, 1), "affine-4-64": (2, 4)}
    assert "tiles" not in as_toml(profile)


@pytest.mark.parametrize("sizes", [(0, 1), (9, 1), (4, 2, 1)])
def test_a_tile_that_cannot_be_is_refused(
    sizes: tuple[int, int], profile: Profile, tmp_path: Path
) -> None:
    """It would be compiled into a kernel."""
    path = write_profile(replace(profile, tiles={"q4_k": sizes}), tmp_path)
    with pytest.raises(ProfileError, match=r"tiles\.q4_k"):
        read_profile(path)


def test_a_person_can_read_it(profile: Profile) -> None:
    """The file says what it is, for which model, and why each depth was chosen."""
    text = as_toml(profile)
    assert text.startswith("# How deep to draft with smollm2")
    assert 'why = "depth ' in text
    assert max(map(len, text.splitlines())) < 300


def test_a_key_has_one_file_and_another_key_another(profile: Profile, tmp_path: Path) -> None:
    """Measuring again replaces; another BLAS or machine is kept beside it."""
    write_profile(profile, tmp_path)
    write_profile(replace(profile, notes=("again",)), tmp_path)
    write_profile(replace(profile, key={**KEY, "blas": "mlx, 1 threads"}), tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    (exact,) = tmp_path.glob(exact_pattern(KEY))
    assert read_profile(exact).notes == ("again",)


@pytest.mark.parametrize("name", sorted(KEY))
def test_every_part_of_the_key_counts(name: str, profile: Profile) -> None:
    """Whatever is otherwise is told by name, and leads to another file."""
    other = {**KEY, name: "another"}
    (told,) = differences(KEY, other)
    assert "another" in told
    assert str(KEY[name]) in told
    assert file_name(profile) != file_name(replace(profile, key=other))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("format = 1", "format = 2", "format is 2"),
        ("[key]\n", '[key]\ncolour = "red"\n', "key.colour is unknown"),
        ("cores = 2\n", "", "key.cores is missing"),
        ("cores = 2\n", "cores = [2]\n", "key.cores is [2]"),
        ("fixed_s = ", "fixed_s = nan #", "costs.fixed_s is nan"),
        ("draft_s = [", "draft_s = [1.0, ", "draft_s"),
        ("any = [", "any = [1.5, ", "acceptance.any"),
        ("any = [", "any = [] #", "acceptance.any is []"),
        ("depth = ", 'depth = "deep" #', "choice.depth is 'deep'"),
        ("ratio = [", "ratio = [1.0, ", "choice.ratio has 4 numbers"),
        ('columns = ["stage", ', "columns = [", "row 1 of trials has 15 values for 14"),
        ("[costs]", "[costs", "line "),
        ("[measured]\n", "[measured]\n[measured]\n", "line "),
        ("notes = []", "notes = 3", "notes is 3"),
    ],
)
def test_a_file_that_was_edited_wrongly_is_refused_by_place(
    old: str, new: str, told: str, profile: Profile, tmp_path: Path
) -> None:
    """One line: which file, what in it, and what to do."""
    plain = replace(profile, measured={"date": "2026-12-01", "model": "smollm2"}, notes=())
    text = as_toml(plain)
    assert old in text
    path = tmp_path / "edited.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ProfileError) as caught:
        read_profile(path)
    assert str(path) in str(caught.value)
    assert told in str(caught.value)
    assert "--retune" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"[" * 5000, b"format = 1\n"])
def test_what_is_no_profile_at_all_is_refused(content: bytes, tmp_path: Path) -> None:
    """Empty, binary, endless or somebody else's."""
    path = tmp_path / "odd.toml"
    path.write_bytes(content)
    with pytest.raises(ProfileError, match=r"odd\.toml"):
        read_profile(path)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    """A folder of that name, or none."""
    (tmp_path / "folder.toml").mkdir()
    for name in ("folder.toml", "absent.toml"):
        with pytest.raises(FileAccessError, match=name):
            read_profile(tmp_path / name)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_disk_that_takes_nothing_leaves_the_old_profile(
    code: int, profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full, read-only or forbidden: an error in one line, and what was there is there."""
    path = write_profile(profile, tmp_path)
    before = path.read_bytes()

    def refuse(*arguments: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("mtplx.files.os.fsync", refuse)
    with pytest.raises(MtplxError, match="Cannot write"):
        write_profile(replace(profile, notes=("new",)), tmp_path)
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


_SAVE_FOREVER = """
import sys
from dataclasses import replace
from pathlib import Path
from mtplx.profile_file import read_profile, write_profile
folder = Path(sys.argv[1])
(path,) = folder.glob("*.toml")
profile = read_profile(path)
print("ready", flush=True)
while True:
    write_profile(replace(profile, notes=profile.notes + ("x" * 50_000,)), folder)
"""


@pytest.mark.slow
def test_a_kill_while_saving_leaves_one_whole_profile(profile: Profile, tmp_path: Path) -> None:
    """`kill -9` at any moment: what is found is the old profile or the new one."""
    path = write_profile(profile, tmp_path)
    for delay_s in (0.0, 0.013, 0.031, 0.06, 0.11):
        process = subprocess.Popen(
            [sys.executable, "-c", _SAVE_FOREVER, str(tmp_path)],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(delay_s)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        found = read_profile(path)
        assert found.notes in (profile.notes, (*profile.notes, "x" * 50_000))
        assert list(tmp_path.glob("*.toml")) == [path]
