import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

ROOT = Path(__file__).parents[2]
Run = Callable[..., "Ran"]
Tune = Callable[..., int]

if TYPE_CHECKING:  # it imports MLX, which a conftest must not do yet
    from tests.tuner.scripted import ScriptedBench


@dataclass(frozen=True, slots=True)
class Ran:
    """A finished `mtplx`: its exit code and what it wrote."""

    code: int
    out: bytes
    err: str


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """The environment of a user who has nothing yet and no network."""
    places = {f"XDG_{name}_HOME": str(tmp_path / name) for name in ("CACHE", "CONFIG", "DATA")}
    offline = {"PIP_NO_INDEX": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "HF")}
    return {**os.environ, **places, **offline, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}


@pytest.fixture
def mtplx(home: dict[str, str]) -> Run:
    """Runs the console program to its end."""

    def run(*arguments: str | Path, stdin: bytes = b"", **environment: str) -> Ran:
        done = subprocess.run(
            [sys.executable, "-m", "mtplx", *map(str, arguments)],
            check=False,
            input=stdin,
            capture_output=True,
            env={**home, **environment},
            cwd=home["HOME"],
            timeout=300,
        )
        return Ran(done.returncode, done.stdout, done.stderr.decode())

    return run


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a few hundred kilobytes that talks noise."""
    from tests.tiny_gguf import write_model  # imports MLX, which a conftest must not do yet

    return write_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="session")
def tiny_head(tiny: Path) -> Path:
    """Its MTP head, where loading does not find it by itself."""
    from tests.tiny_gguf import write_head

    return write_head(tiny.parent / "head.safetensors", tiny)


@pytest.fixture(scope="session")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an MTP head of its own and a byte-level tokenizer; beside it `llama`, without
    a head."""
    from dataclasses import replace

    from tests.families.assembled import assemble, write_checkpoint
    from tests.families.qwen import QWEN3_5
    from tests.tiny_folder import write_folder

    folder = tmp_path_factory.mktemp("hybrid")
    other = write_folder(folder / "llama")
    recipe = replace(QWEN3_5, config={**QWEN3_5.config, "vocab_size": 257})
    made = write_checkpoint(assemble(recipe), folder / "hybrid")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (made / name).write_bytes((other / name).read_bytes())
    return made


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The settings folder of somebody who has nothing yet."""
    for name in ("CONFIG", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        yield tmp_path / "CONFIG" / "mtplx"


@pytest.fixture
def tune(config: Path, tiny: Path, tiny_head: Path, monkeypatch: pytest.MonkeyPatch) -> Tune:
    """`mtplx tune` on the small model, with a scripted bench in place of the machine."""
    from mtplx.cli.app import run
    from tests.tuner.scripted import RATES, ScriptedBench

    def tuned(*more: str, bench: "ScriptedBench | None" = None) -> int:
        used = bench or ScriptedBench(RATES)
        monkeypatch.setattr("mtplx.tuner.product.ProductBench", lambda model, params: used)
        model = ["--model", str(tiny), "--head", str(tiny_head)]
        return run(["tune", *model, "--contexts", "200,400", "--budget", "2h", *more])

    return tuned


def profiles(config: Path) -> list[Path]:
    return sorted((config / "profiles").glob("*"))
