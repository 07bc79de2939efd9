"""`mtplx train-head` from end to end on a tiny model, and what it says when it cannot."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mtplx.cli import train_head
from mtplx.training.lesson import Report
from tests.cli.conftest import ROOT, Ran, Run

FEW = (
    *("--own-tokens", "1", "--text-tokens", "4000", "--workers", "1"),
    *("--shortlist", "128", "--steps", "24", "--unrolled-steps", "6"),
)
EXACT = ("--blas", "mlx")


def home_in(folder: Path) -> dict[str, str]:
    places = {f"XDG_{name}_HOME": str(folder / name) for name in ("CACHE", "CONFIG", "DATA")}
    return {**os.environ, **places, "HOME": str(folder), "PYTHONPATH": str(ROOT)}


def command(model: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "mtplx", *EXACT, "train-head", str(model), *FEW, *options]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> tuple[Path, Ran]:
    """A home in which a head was trained for the tiny model, and what was said."""
    folder = tmp_path_factory.mktemp("home")
    done = subprocess.run(
        command(tiny), env=home_in(folder), cwd=folder, capture_output=True, check=False
    )
    return folder, Ran(done.returncode, done.stdout, done.stderr.decode())


@pytest.mark.slow
def test_a_run_ends_with_figures_and_a_head(trained: tuple[Path, Ran]) -> None:
    """Standard output holds the held-out table, the control, and where the head is."""
    home, ran = trained
    assert ran.code == 0, ran.err
    lines = ran.out.decode().splitlines()
    assert [line.split()[:2] for line in lines[1:7]] == [
        [kind, f"T={t}"] for kind in ("chat", "code", "prose") for t in ("0", "0.7")
    ]
    assert lines[7].startswith("control, targets shifted by one: ")
    (head,) = (home / "DATA" / "mtplx" / "heads").iterdir()
    assert lines[8] == f"The head is in {head}."


@pytest.mark.slow
def test_the_head_is_found_and_drafts_exactly(
    trained: tuple[Path, Ran], tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading the model finds it, and greedy text is the same with and without drafting."""
    from mtplx.loading.load import load
    from mtplx.stats import DecodeStats
    from tests.tiny import finish, plain, start

    monkeypatch.setenv("XDG_DATA_HOME", str(trained[0] / "DATA"))
    model = load(tiny)
    assert model.can_draft, model.no_head_reason
    assert model.shortlist is not None
    assert len(model.shortlist.ids) == 128
    stats = DecodeStats()
    for prompt in ([1, 9, 8, 7], list(range(20, 60))):
        drafted = finish(start(model.new_state(prompt), prompt, depth=3, stats=stats))
        assert drafted == plain(model.target, prompt)


@pytest.mark.slow
def test_a_finished_run_answers_again(trained: tuple[Path, Ran], tiny: Path) -> None:
    """The same command trains nothing and gives the same figures; --out may differ."""
    home, ran = trained
    out = home / "copy.safetensors"
    done = subprocess.run(
        command(tiny, "--out", str(out)),
        env=home_in(home),
        cwd=home,
        capture_output=True,
        check=True,
    )
    assert done.stdout.splitlines()[:-1] == ran.out.splitlines()[:-1]
    assert b"training" not in done.stderr
    (head,) = (home / "DATA" / "mtplx" / "heads").iterdir()
    assert out.read_bytes() == head.read_bytes()


@pytest.mark.slow
def test_other_options_are_refused_in_one_line(trained: tuple[Path, Ran], tiny: Path) -> None:
    """What differs from the run that is there is named as it is given."""
    home, _ = trained
    done = subprocess.run(
        command(tiny, "--blocks", "2", "--seed", "9"),
        env=home_in(home),
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    (line,) = [x for x in done.stderr.splitlines() if x.startswith("mtplx: ")]
    assert "--blocks 1, now 2" in line
    assert "--seed 1, now 9" in line


@pytest.mark.slow
def test_progress_is_a_few_lines_where_nobody_looks(trained: tuple[Path, Ran]) -> None:
    """Each part is announced, training is measured, and no step has a line of its own."""
    _, ran = trained
    lines = ran.err.splitlines()
    for what in ("writing its own text", "reading ordinary text", "training 1 deep: 1 of 24"):
        assert any(line.startswith(what) for line in lines), ran.err
    measured = [line for line in lines if "chat T=0" in line]
    assert [line.split(", loss")[0] for line in measured] == [
        "training 1 deep, step 24",
        "training 3 deep, step 6",
    ]


@pytest.mark.slow
def test_an_interrupt_ends_the_command_quietly(tiny: Path, tmp_path: Path) -> None:
    """Exit code 130, no traceback, whatever is being done; not even of the processes it started."""
    for wait_s in (2.5, 4.0):
        with subprocess.Popen(
            command(tiny, "--folder", "run"),
            env=home_in(tmp_path),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            assert process.stderr is not None
            assert "Ctrl-C stops it" in process.stderr.readline()
            time.sleep(wait_s)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to all of them
            _, said = process.communicate(timeout=300)
        assert process.returncode == 130
        assert "Traceback" not in said
        assert "Interrupt" not in said


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (("--text", "gone.txt"), 2, "gone.txt"),
        (("--text", "."), 2, "is a directory"),
        (("--out", "."), 2, "is a directory"),
        (("--out", "head.gguf"), 2, "a head is a .safetensors file"),
        (("--out", "tiny.txt/head.safetensors"), 1, "Cannot create the folder"),
        (("--folder", "tiny.txt"), 2, "is a file"),
        (("--folder", "tiny.txt/run"), 1, "Cannot create the folder"),
        (("--blocks", "0"), 2, "--blocks"),
        (("--seed", "-1"), 2, "--seed"),
        (("--steps", "0"), 2, "--steps"),
        (("--engine", "jax"), 2, "--engine"),
        (("--text", "latin.txt"), 1, "latin.txt is not UTF-8 text"),
        (("--text", "tiny.txt"), 1, "fewer than 384 tokens"),
    ],
)
def test_what_cannot_be_meant_is_told_before_any_work(
    mtplx: Run, tiny: Path, tmp_path: Path, options: tuple[str, ...], code: int, told: str
) -> None:
    """One line that names the option or the file."""
    (tmp_path / "tiny.txt").write_text("Too short.")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 " * 2000)
    ran = mtplx(*EXACT, "train-head", tiny, *FEW, *options)
    assert ran.code == code, ran.err
    (line,) = [x for x in ran.err.splitlines() if x.startswith("mtplx: ")]
    assert told in line
    assert not list(tmp_path.rglob("*.npz"))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("raise ModuleNotFoundError('No module named torch')", "No module named torch"),
        ("raise OSError('libgomp.so is missing')", "libgomp.so is missing"),
    ],
)
def test_pytorch_that_is_not_there_is_told_at_once(
    mtplx: Run, tiny: Path, tmp_path: Path, content: str, told: str
) -> None:
    """What is wrong and how to install it, before any work."""
    (tmp_path / "blocked").mkdir()
    (tmp_path / "blocked" / "torch.py").write_text(content)
    path = f"{tmp_path / 'blocked'}{os.pathsep}{ROOT}"
    ran = mtplx(*EXACT, "train-head", tiny, *FEW, "--engine", "torch", PYTHONPATH=path)
    assert ran.code == 2, ran.err
    (line,) = [x for x in ran.err.splitlines() if x.startswith("mtplx: ")]
    assert told in line
    assert "pip install 'torch>=2.13'" in line
    assert not list(tmp_path.rglob("*.npz"))


@pytest.mark.slow
def test_a_folder_is_trained_for_as_a_file_is(mtplx: Run, tmp_path: Path) -> None:
    """mlx-lm runs the trunk; the head that was trained is found and drafts."""
    from tests.tiny_folder import write_folder

    folder = write_folder(tmp_path / "model")
    few = (*FEW, "--own-tokens", "1", "--text-tokens", "0", "--steps", "2", "--unrolled-steps", "1")
    ran = mtplx(*EXACT, "train-head", folder, *few, "--folder", tmp_path / "run")
    assert ran.code == 0, ran.err
    asked = ("generate", "--model", folder, "--json", "--raw", "--depth", "2", "--max-tokens", "8")
    told = json.loads(mtplx(*EXACT, *asked, "--temp", "0", "one two").out)
    assert told["drafts"]


def test_a_head_does_not_go_into_the_models_folder(mtplx: Run, tmp_path: Path) -> None:
    """It would change what the folder's content says the trunk is; told before any work."""
    from tests.tiny_folder import write_folder

    folder = write_folder(tmp_path / "model")
    ran = mtplx(*EXACT, "train-head", folder, *FEW, "--out", folder / "mtp.safetensors")
    assert ran.code == 2
    assert str(tmp_path / "model.mtp.safetensors") in ran.err
    assert not (folder / "mtp.safetensors").exists()


def test_a_model_of_another_kind_is_refused(mtplx: Run, hybrid: Path) -> None:
    """Heads are trained for llama-type models."""
    ran = mtplx(*EXACT, "train-head", hybrid, *FEW)
    assert ran.code == 1
    assert "is not a llama-type model" in ran.err


def test_a_template_that_cannot_be_framed_is_told_at_once(mtplx: Run, tmp_path: Path) -> None:
    """Not after an hour, and not by a process of its own."""
    from tests.tiny_gguf import write_model

    template = "{% for m in messages %}{{ m.content | upper }}{% endfor %}"
    model = write_model(tmp_path / "loud.gguf", template=template)
    ran = mtplx(*EXACT, "train-head", model, *FEW)
    assert ran.code == 1
    assert "changes or drops messages" in ran.err
    assert not list(tmp_path.rglob("*.npz"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_rights_is_told_at_once(mtplx: Run, tiny: Path, tmp_path: Path) -> None:
    """A run that could not keep anything does not begin."""
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    ran = mtplx(*EXACT, "train-head", tiny, *FEW, "--folder", folder)
    assert ran.code == 1
    assert "no right to" in ran.err


def test_a_line_is_told_when_something_begins_and_then_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of steps are a line every ten seconds; results are always told."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    lines = train_head._Lines()
    for step in range(1, 101):
        clock[0] += 0.5
        result = "measured" if step == 50 else ""
        lines.tell(Report("training", step, 100, f"loss {step}", result))
    told = capsys.readouterr().err.splitlines()
    assert told == [
        "training: 1 of 100, loss 1",
        "training: 21 of 100, loss 21",
        "training: 41 of 100, loss 41",
        "measured",
        "training: 61 of 100, loss 61",
        "training: 81 of 100, loss 81",
    ]


def test_a_bar_shows_progress_and_keeps_results() -> None:
    """On a terminal the loss stands beside its bar, and figures stay above it."""
    import io

    import rich.console

    screen = io.StringIO()
    console = rich.console.Console(file=screen, force_terminal=True, width=120)
    with train_head.bars(console) as progress:
        shown = train_head._Bars(progress)
        for step in range(1, 8):
            shown.tell(Report("training", step, 7, f"loss {step}", "chat [0] 0.5" * (step == 4)))
    said = screen.getvalue()
    assert said.count("chat [0] 0.5") == 1
    assert "7 of 7" in said
    assert "loss 7" in said
