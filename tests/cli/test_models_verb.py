"""`mtplx models`: what it lists, fetches, removes and leaves alone."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mtplx.loading.hub_cache import repo_folder
from mtplx.loading.hub_record import PART
from tests.cli.conftest import Run
from tests.loading.hub_layout import CHECKPOINT, put_repo
from tests.loading.local_server import REPO, hub_pages, serving


def hub(home: dict[str, str]) -> Path:
    return Path(home["HF_HOME"]) / "hub"


def test_nothing_here_says_how_to_begin(mtplx: Run) -> None:
    """An empty list is no empty screen; as JSON it is one."""
    ran = mtplx("models", "list")
    assert (ran.code, b"mtplx models pull smollm2" in ran.out) == (0, True)
    assert json.loads(mtplx("models", "list", "--json").out) == {"models": []}


def test_models_of_all_places_are_listed(
    mtplx: Run, home: dict[str, str], tiny: Path, tmp_path: Path
) -> None:
    """With size, head, place and what speaks against them, in columns."""
    mine = tmp_path / "größere Modelle"
    mine.mkdir()
    (mine / "模型.gguf").write_bytes(tiny.read_bytes())
    (mine / "模型.mtp.safetensors").write_bytes(b"not checked here")
    put_repo(hub(home), "owner/name", CHECKPOINT)
    mtplx("config", "set", "folders", mine)
    lines = mtplx("models", "list").out.decode().splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", "owner/name", "模型.gguf"]
    assert lines[0].split() == ["NAME", "KIND", "SIZE", "HEAD", "WHERE"]
    assert lines[1].endswith("-     Hugging Face cache")
    assert lines[2].endswith(f"yes   {mine}")
    listed = json.loads(mtplx("models", "list", "--json").out)["models"]
    assert listed[1]["head"] == str(mine / "模型.mtp.safetensors")
    assert listed[1]["num_bytes"] == tiny.stat().st_size
    path = mtplx("models", "path", "模型.gguf").out.decode().strip()
    assert path == str(mine / "模型.gguf")


def test_a_model_is_pulled_found_used_and_removed(
    mtplx: Run, home: dict[str, str], tiny: Path
) -> None:
    """From the hub and back, with every byte accounted for."""
    content = tiny.read_bytes()
    name = f"{REPO}/tiny.gguf"
    with serving(hub_pages({"tiny.gguf": content, "big.gguf": b"GGUF"})) as (host, log):
        online = {"HF_ENDPOINT": host, "HF_HUB_OFFLINE": "0"}
        several = mtplx("models", "pull", REPO, **online)
        assert (several.code, f"Choose one: {name}" in several.err) == (1, True)
        ran = mtplx("models", "pull", name, **online)
        assert ran.code == 0, ran.err
        assert b"1 file" in ran.out
        assert b"every byte checked" in ran.out
        asked = len(log)
        assert mtplx("models", "pull", name, **online).code == 0
        assert len(log) == asked
    path = Path(ran.out.decode().splitlines()[-1])
    assert path.read_bytes() == content
    assert mtplx("models", "path", name).out.decode().strip() == str(path)
    reply = mtplx("--blas", "mlx", "generate", "-m", name, "--max-tokens", "2", "--json", "hello")
    assert json.loads(reply.out)["model"] == name
    refused = mtplx("models", "rm", name)
    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert path.exists()
    ran = mtplx("models", "rm", "--yes", name)
    assert (ran.code, ran.out) == (
        0,
        f"Removed {name}: {len(content) / 1e6:.1f} MB are free again.\n".encode(),
    )
    assert not repo_folder(REPO, hub(home)).exists()
    assert mtplx("models", "path", name).code == 1


def test_what_is_not_ours_is_never_removed(
    mtplx: Run, home: dict[str, str], tiny: Path, tmp_path: Path
) -> None:
    """Not even with --yes: a file of the user's, another program's model; one refusal keeps all."""
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(tiny.read_bytes())
    put_repo(hub(home), "owner/name", CHECKPOINT)
    put_repo(hub(home), "owner/ours", CHECKPOINT, fetched=True)
    for name in (mine, "owner/name"):
        ran = mtplx("models", "rm", "--yes", "owner/ours", name)
        assert (ran.code, ran.out) == (1, b"")
        assert str(name) in ran.err
    assert mine.exists()
    for repo in ("owner/name", "owner/ours"):
        snapshot = repo_folder(repo, hub(home)) / "snapshots" / ("0" * 40)
        assert {path.name for path in snapshot.iterdir()} == CHECKPOINT.keys()


def test_a_pull_without_a_network_is_one_line(mtplx: Run) -> None:
    """What is said of a model that is neither here nor to be had."""
    ran = mtplx("models", "pull", "owner/name")
    assert (ran.code, ran.out) == (1, b"")
    assert "HF_HUB_OFFLINE keeps off the Hugging Face hub" in ran.err
    assert ran.err.startswith("mtplx: ")
    assert ran.err.count("\n") == 1


@pytest.mark.slow
def test_ctrl_c_stops_a_pull_and_the_next_goes_on(
    mtplx: Run, home: dict[str, str], tiny: Path
) -> None:
    """With a word that it does; nothing is there that looks like a model."""
    content = tiny.read_bytes() + bytes(30_000_000)
    pages, stall = hub_pages({"tiny.gguf": content}), threading.Event()
    with serving(pages, cut_at=25_000_000, stall=stall) as (host, _):
        online = {"HF_ENDPOINT": host, "HF_HUB_OFFLINE": "0"}
        command = [sys.executable, "-m", "mtplx", "models", "pull", REPO]
        with subprocess.Popen(
            command, env={**home, **online}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            deadline = time.monotonic() + 60
            while not any(part.stat().st_size for part in hub(home).rglob(f"*{PART}")):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        stall.set()
    assert (process.returncode, out) == (130, b"")
    assert b"goes on from here" in err
    assert b"Traceback" not in err
    assert list(hub(home).rglob("*.gguf")) == []
    with serving(pages) as (host, log):
        ran = mtplx("models", "pull", REPO, HF_ENDPOINT=host, HF_HUB_OFFLINE="0")
    assert ran.code == 0, ran.err
    assert " from " in log[-1]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a file system nobody may write")
def test_a_cache_nobody_may_write_is_one_line(mtplx: Run, tiny: Path) -> None:
    """Also for the superuser."""
    with serving(hub_pages({"tiny.gguf": tiny.read_bytes()})) as (host, _):
        online = {"HF_ENDPOINT": host, "HF_HUB_OFFLINE": "0", "HF_HOME": "/proc/nowhere"}
        ran = mtplx("models", "pull", REPO, **online)
    assert (ran.code, ran.out) == (1, b"")
    assert "/proc/nowhere" in ran.err
    assert ran.err.count("\n") == 1


_NOBODY = "import os, pwd, sys; pwd.getpwuid = lambda uid: {}[uid]; del os.environ['HOME']\n"


def test_a_user_without_a_home_can_run_a_model(
    home: dict[str, str], tiny: Path, tmp_path: Path
) -> None:
    """And is told what to set where something would have to be kept."""
    environment = {k: v for k, v in home.items() if not k.startswith(("XDG_", "HF_HOME"))}
    command = [sys.executable, "-c", _NOBODY + "from mtplx.cli import main; main()"]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *words],
            check=False,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
        )

    ran = run("--blas", "mlx", "generate", "-m", str(tiny), "--max-tokens", "2", "hello")
    assert ran.returncode == 0, ran.stderr
    for words in (
        ["config", "set", "top_k", "3"],
        ["models", "pull", "smollm2"],
        ["config", "path"],
    ):
        ran = run(*words)
        assert ran.returncode == 1
        assert "no home folder" in ran.stderr
        assert ran.stderr.count("\n") == 1
    assert run("config", "show").returncode == 0
    assert run("models", "list").returncode == 0
    doctor = run("doctor")
    assert (doctor.stderr, "no home folder" in doctor.stdout) == ("", True)
    assert os.listdir(tmp_path) == []
