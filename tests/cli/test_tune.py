"""`mtplx tune` as a command: what it saves, and what it leaves alone.

The model is a real one, the bench a scripted one: speeds are known and nobody waits.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mtplx.cli.app import run
from mtplx.loading.load import load
from mtplx.profile_file import read_profile
from tests.cli.conftest import Tune, profiles
from tests.tuner.scripted import RATES, VERIFY_MS, ScriptedBench


def steep(rows: int, context: int) -> float:
    return VERIFY_MS * rows


def test_where_drafting_wins_a_profile_is_saved(
    tune: Tune, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Said in a sentence, with a table, and loading the model finds it."""
    assert tune() == 0
    out, err = capsys.readouterr()
    (path,) = profiles(config)
    assert out == ""
    assert "Drafting pays everywhere" in err
    assert f"Saved: {path}" in err
    assert "warm-up" in err
    profile = read_profile(path)
    assert {(c.kind, c.context) for c in profile.choices} == {
        (kind, context) for kind in RATES for context in (200, 400)
    }


def test_kernels_that_are_timed_have_a_line_each(
    tune: Tune, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of their packing, with the time, before the line of the warm-up; with --json none."""
    compile_s = {"q4_k": 2.0, "q6_k": 5.0}
    assert tune(bench=ScriptedBench(RATES, compile_s=compile_s)) == 0
    lines = capsys.readouterr().err.splitlines()
    at = lines.index("    0 s  timing kernels for q4_k")
    assert lines[at + 1 : at + 3] == [
        "    6 s  timing kernels for q6_k",
        "   21 s  reading prompts and warming up",
    ]
    assert sum("timing kernels" in line for line in lines) == 2
    assert tune("--retune", "--json", bench=ScriptedBench(RATES, compile_s=compile_s)) == 0
    assert "timing kernels" not in capsys.readouterr().err


def test_where_plain_decoding_wins_nothing_is_saved(
    tune: Tune, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """That is a result and no error."""
    assert tune(bench=ScriptedBench(RATES, steep)) == 0
    assert "Drafting does not pay here" in (err := capsys.readouterr().err)
    assert "Nothing was saved." in err
    assert profiles(config) == []


def test_a_lame_rival_is_no_reason_to_save(
    tune: Tune, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plain arm that is slower than the product's own plain decoding is flagged."""
    assert tune(bench=ScriptedBench(RATES, plain_factor=1.4)) == 0
    assert "Not trusted" in capsys.readouterr().err
    assert profiles(config) == []


def test_the_profile_is_used_and_that_is_said(
    tune: Tune, config: Path, tiny: Path, tiny_head: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Loading takes curve and acceptance from it; generate, chat and doctor tell of it."""
    assert tune() == 0
    loaded = load(tiny, head=tiny_head)
    assert loaded.depth_costs is not None
    assert loaded.depth_costs.curve == read_profile(profiles(config)[0]).curve
    assert set(loaded.depth_costs.priors) == {"", *RATES}
    capsys.readouterr()
    model = ["--model", str(tiny), "--head", str(tiny_head), "--max-tokens", "2"]
    assert run(["generate", *model, "--stats", "Hello"]) == 0
    assert "Tuned on" in capsys.readouterr().err
    assert run(["doctor"]) in (0, 1)
    assert "fits this machine" in capsys.readouterr().out


def test_a_profile_of_another_machine_is_ignored_with_a_line(
    tune: Tune, config: Path, tiny: Path, tiny_head: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line says what differs; the file stays."""
    assert tune() == 0
    (path,) = profiles(config)
    path.write_text(path.read_text().replace("cores = ", "cores = 9", 1))
    loaded = load(tiny, head=tiny_head)
    assert loaded.depth_costs is None
    assert loaded.profile_note is not None
    assert "the number of cores was 9" in loaded.profile_note
    capsys.readouterr()
    model = ["--model", str(tiny), "--head", str(tiny_head), "--max-tokens", "2"]
    assert run(["generate", *model, "Hello"]) == 0
    assert capsys.readouterr().err.count("is not used") == 1
    assert path.is_file()


def test_a_broken_profile_keeps_nobody_from_working(
    tune: Tune, config: Path, tiny: Path, tiny_head: Path
) -> None:
    """It costs the tuning and a line."""
    assert tune() == 0
    (path,) = profiles(config)
    path.write_text(path.read_text()[:1000])
    loaded = load(tiny, head=tiny_head)
    assert loaded.depth_costs is None
    assert loaded.profile_note is not None
    assert str(path) in loaded.profile_note
    assert "\n" not in loaded.profile_note


def test_what_is_tuned_is_not_measured_again_unasked(
    tune: Tune, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--retune does."""
    assert tune() == 0
    written = profiles(config)[0].stat().st_mtime_ns
    bench = ScriptedBench(RATES)
    capsys.readouterr()
    assert tune(bench=bench) == 0
    assert bench.num_replies == 0
    assert "--retune" in capsys.readouterr().err
    assert tune("--retune") == 0
    assert profiles(config)[0].stat().st_mtime_ns > written


class Interrupting(ScriptedBench):
    """Ctrl-C comes in the middle of a reply."""

    def passes_s(self, cell: object, max_depth: int) -> list[float]:
        raise KeyboardInterrupt


def test_ctrl_c_leaves_the_old_profile(
    tune: Tune, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 130, one line, and not a byte is changed."""
    assert tune() == 0
    before = profiles(config)[0].read_bytes()
    capsys.readouterr()
    assert tune("--retune", bench=Interrupting(RATES)) == 130
    assert "Nothing was saved" in capsys.readouterr().err
    assert profiles(config)[0].read_bytes() == before


def test_a_budget_that_is_too_short_leaves_the_old_profile(
    tune: Tune, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told beforehand, with the time that it would take."""
    assert tune() == 0
    before = profiles(config)[0].read_bytes()
    capsys.readouterr()
    assert tune("--retune", "--budget", "60s") == 2
    assert "is too little for 8 classes and contexts" in capsys.readouterr().err
    assert profiles(config)[0].read_bytes() == before


def test_the_end_of_the_budget_leaves_the_old_profile(
    tune: Tune, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the machine gets slower than it was, the time ends before there is a verdict."""
    assert tune() == 0
    before = profiles(config)[0].read_bytes()
    capsys.readouterr()
    slowing = ScriptedBench(RATES, slowing=2.0)
    assert tune("--retune", "--budget", "10m", bench=slowing) == 1
    assert "ended before there was a verdict" in capsys.readouterr().err
    assert profiles(config)[0].read_bytes() == before


def test_a_full_disk_loses_nothing(
    tune: Tune,
    config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The old profile stays, and the new one stands on standard output, to be imported."""
    assert tune() == 0
    before = profiles(config)[0].read_bytes()
    capsys.readouterr()

    def refuse(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr("mtplx.files.os.fsync", refuse)
        assert tune("--retune") == 1
    out, err = capsys.readouterr()
    assert err.count("the disk is full") == 1
    assert profiles(config)[0].read_bytes() == before
    (tmp_path / "saved.toml").write_text(out)
    assert run(["profile", "import", str(tmp_path / "saved.toml")]) == 0
    assert profiles(config)[0].read_text() == out


def test_a_dry_run_measures_nothing(
    tune: Tune, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says what would be measured and what the profile would hold for."""
    bench = ScriptedBench(RATES)
    assert tune("--dry-run", bench=bench) == 0
    err = capsys.readouterr().err
    assert "Nothing was measured" in err
    assert "structured" in err
    assert tune("--dry-run", "--json", bench=bench) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["depths"] == list(range(8))
    assert {"chip", "blas", "model", "kv"} <= set(plan["key"])
    assert bench.num_replies == 0
    assert profiles(config) == []


def test_json_holds_everything_on_one_line(
    tune: Tune, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Verdict, choices, costs, acceptance and the raw trials, and no word on standard error."""
    assert tune("--json") == 0
    out, err = capsys.readouterr()
    assert err == ""
    (line,) = out.splitlines()
    told = json.loads(line)
    assert told["saved"] == str(profiles(config)[0])
    assert told["wins"]
    assert len(told["choices"]) == 8
    assert len(told["costs"]["verify_s"]) == 2
    assert len(told["trials"]["rows"]) > 100


def test_a_chart_is_drawn_on_request(
    tune: Tune, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A panel for each class; another ending than .svg or .png is refused before measuring."""
    assert tune("--chart", str(tmp_path / "speeds.svg")) == 0
    drawn = (tmp_path / "speeds.svg").read_text()
    assert drawn.startswith("<svg ")
    assert all(f">{kind}</text>" in drawn for kind in RATES)
    bench = ScriptedBench(RATES)
    assert tune("--retune", "--chart", str(tmp_path / "speeds.gif"), bench=bench) == 2
    assert "speeds.gif" in capsys.readouterr().err
    assert bench.num_replies == 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--budget", "soon"], "'soon'"),
        (["--budget", "2s"], "2 s"),
        (["--contexts", "1k,many"], "'many'"),
        (["--contexts", "1m"], "'1m'"),
        (["--contexts", "900k"], "921,600"),
        (["--classes", "chat,verse"], "'verse'"),
        (["--max-depth", "0"], "0"),
        (["--max-depth", "99"], "99"),
        (["--depth", "3"], "--depth"),
        (["--max-tokens", "3"], "--max-tokens"),
        (["--temp", "-1"], "temperature is -1.0"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(
    arguments: list[str], named: str, tune: Tune, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line that names the value, and exit code 2."""
    assert tune(*arguments) == 2
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("mtplx: ")]
    assert named in line


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_ends_the_table_and_saves_nothing(
    home: dict[str, str], tiny: Path, tiny_head: Path
) -> None:
    """A real run of the real bench: the live table is drawn, and Ctrl-C ends it at once."""
    master, slave = os.openpty()
    command = ["tune", "--model", str(tiny), "--head", str(tiny_head), "--contexts", "200"]
    process = subprocess.Popen(
        [sys.executable, "-m", "mtplx", *command, "--budget", "1h"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**home, "TERM": "xterm", "COLUMNS": "100"},
        start_new_session=True,
    )
    os.close(slave)
    seen, patience = b"", time.monotonic() + 120
    while b"tokens per second by draft depth" not in seen and time.monotonic() < patience:
        seen += os.read(master, 4096)
    process.send_signal(signal.SIGINT)
    while True:
        try:
            seen += os.read(master, 4096)
        except OSError:  # the other side has gone
            break
    os.close(master)
    assert process.wait(timeout=60) == 130
    assert b"Stopped. Nothing was saved" in seen
    assert b"Traceback" not in seen
    assert list(Path(home["XDG_CONFIG_HOME"]).rglob("*.toml")) == []
