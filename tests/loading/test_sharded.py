"""A model split over two processes gives one machine's tokens; what does not fit is named."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mtplx.errors import UnsupportedTensorError, UsageError
from mtplx.loading.load import load
from mtplx.loading.sharded import join
from mtplx.models.sharded import shard
from tests.rank import as_float32, token_ids
from tests.tiny_folder import write_folder

ROOT = Path(__file__).parents[2]
HYBRID = ROOT / "tests/assets/tiny-qwen3_5"


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(open_.getsockname()[1]) for open_ in sockets]
    for open_ in sockets:
        open_.close()
    return ports


def run_ranks(tmp_path: Path, folders: list[Path]) -> list[subprocess.CompletedProcess[str]]:
    """One process for each folder, joined as mlx.launch joins them."""
    hosts = tmp_path / "hosts.json"
    hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in free_ports(len(folders))]))
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.rank", str(folder)],
            cwd=ROOT,
            env={**os.environ, "MLX_RANK": str(rank), "MLX_HOSTFILE": str(hosts)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, folder in enumerate(folders)
    ]
    done = []
    for process in running:
        out, err = process.communicate(timeout=300)
        done.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    return done


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["attention", "hybrid"])
def test_two_processes_give_the_tokens_of_one(kind: str, tmp_path: Path) -> None:
    """Plain, drafted and drawn, and where a second prompt shares only a beginning."""
    original = HYBRID if kind == "hybrid" else write_folder(tmp_path / "llama")
    folder = as_float32(original, tmp_path / "wide")
    first, second = run_ranks(tmp_path, [folder, folder])
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert second.stdout == ""
    assert json.loads(first.stdout) == token_ids(load(folder))


def test_machines_with_different_models_say_so(tmp_path: Path) -> None:
    """Before any weights are read, and on both of them."""
    one = write_folder(tmp_path / "one")
    other = write_folder(tmp_path / "other", hidden_size=32)
    for rank in run_ranks(tmp_path, [one, other]):
        assert rank.returncode == 1, rank.stderr
        assert "The machines differ in model: rank 0 has" in rank.stderr


def test_a_process_that_was_not_launched_is_told_how() -> None:
    """--distributed alone joins nobody."""
    with pytest.raises(UsageError, match=r"mlx\.launch"):
        join()


TWO = SimpleNamespace(size=lambda: 2)  # as much of a group as is asked before splitting


def test_a_model_that_mlx_lm_cannot_split_is_named() -> None:
    """Rather than a part of it being wrong."""
    with pytest.raises(UnsupportedTensorError, match="phi cannot be split over machines"):
        shard({}, TWO, "phi")  # type: ignore[arg-type]


def test_heads_that_do_not_divide_are_named() -> None:
    """mlx-lm would cut a head in two without a word."""
    arguments = SimpleNamespace(num_attention_heads=9, num_key_value_heads=3)
    model = _Splittable(args=arguments, model_type="llama")
    with pytest.raises(UnsupportedTensorError, match="its num_attention_heads is 9"):
        shard(model, TWO, "smollm")  # type: ignore[arg-type]


class _Splittable(dict):  # type: ignore[type-arg]
    def __init__(self, args: SimpleNamespace, model_type: str) -> None:
        super().__init__()
        self.args, self.model_type = args, model_type

    def shard(self, group: object) -> None:
        raise AssertionError("split within a head")
