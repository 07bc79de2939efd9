"""What a run keeps on disk: whole or absent, read back as it was, and refused when damaged."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mtplx.errors import FileAccessError, TrainingError
from mtplx.training.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from mtplx.training.initialise import initial_parameters
from mtplx.training.optimiser import Optimiser
from mtplx.training.own_text import Passage
from mtplx.training.passages_file import read_passages, write_passages
from tests.tiny import random_prompt, tiny_target
from tests.training.small import random_passages

ROOT = Path(__file__).parents[2]


def passages() -> list[Passage]:
    return random_passages(tiny_target(), [5, 17, 1, 9])


def checkpoint(factor: float = 1.0) -> Checkpoint:
    windows = [random_prompt(20)] * 4
    value = initial_parameters(tiny_target(), windows)
    first, second = ({name: v * f for name, v in value.items()} for f in (0.5, 0.25 * factor))
    shortlist = mx.array([1, 5, 9], dtype=mx.int32)
    return Checkpoint(value, Optimiser(first, second, 77), shortlist, 1, 40)


def test_passages_come_back_as_they_were(tmp_path: Path) -> None:
    """Tokens, hidden states to the bit, and kinds, over several files in the order given."""
    written = [
        Passage(p.token_ids, p.hidden, kind) for p, kind in zip(passages(), "abcd", strict=True)
    ]
    paths = [tmp_path / "two.npz", tmp_path / "one.npz"]
    write_passages(paths[0], written[:1])
    write_passages(paths[1], written[1:])
    for before, after in zip(written, read_passages(paths), strict=True):
        assert np.array_equal(before.token_ids, after.token_ids)
        assert np.array_equal(before.hidden, after.hidden)
        assert after.hidden.dtype == np.float16
        assert after.kind == before.kind


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.9, 0.999])
def test_a_cut_chunk_is_a_training_error(tmp_path: Path, share: float) -> None:
    """Wherever the file ends too early, it is named together with what to do."""
    path = tmp_path / "own-00000.npz"
    write_passages(path, passages())
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(TrainingError, match=r"own-00000.npz is not a whole chunk.*Delete it"):
        read_passages([path])


def test_a_changed_byte_in_a_chunk_is_noticed(tmp_path: Path) -> None:
    """The archive's checksums are looked at."""
    path = tmp_path / "own-00000.npz"
    write_passages(path, passages())
    content = bytearray(path.read_bytes())
    at = content.index(passages()[1].hidden.tobytes()[:40])
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(TrainingError, match="not a whole chunk"):
        read_passages([path])


@pytest.mark.parametrize("kind", ["text", "one array", "other arrays", "lengths that lie"])
def test_something_else_is_not_a_chunk(tmp_path: Path, kind: str) -> None:
    """Files that are no chunk, and chunks whose arrays contradict each other, are refused."""
    path = tmp_path / "own-00000.npz"
    zeros = np.zeros((4, 2), np.float16)
    with path.open("wb") as file:
        if kind == "text":
            file.write(b"Once upon a time")
        elif kind == "one array":
            np.save(file, zeros)
        elif kind == "other arrays":
            np.savez(file, weights=zeros)
        else:
            ids = np.zeros(4, np.int32)
            np.savez(file, lengths=np.array([9]), token_ids=ids, hidden=zeros, kinds=["a"])
    with pytest.raises(TrainingError, match="not a whole chunk"):
        read_passages([path])


def test_a_chunk_that_cannot_be_read_is_a_file_error(tmp_path: Path) -> None:
    """A missing file is not called damaged."""
    with pytest.raises(FileAccessError, match="no such file"):
        read_passages([tmp_path / "own-00000.npz"])


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    """Every array of it to the bit, and where training was."""
    path = tmp_path / "checkpoint.safetensors"
    before = checkpoint()
    before.parameters["eh_proj"] = before.parameters["eh_proj"].T  # strided, as gradients can be
    write_checkpoint(path, before)
    after = read_checkpoint(path)
    assert (after.stage, after.step, after.optimiser.num_steps) == (1, 40, 77)
    assert after.shortlist.dtype == mx.int32
    assert mx.array_equal(after.shortlist, before.shortlist).item()
    groups = (
        (before.parameters, after.parameters),
        (before.optimiser.first, after.optimiser.first),
        (before.optimiser.second, after.optimiser.second),
    )
    for one, other in groups:
        assert one.keys() == other.keys()
        assert all(mx.array_equal(one[name], other[name]).item() for name in one)


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.01, 0.5, 0.9999])
def test_a_cut_checkpoint_is_a_training_error(tmp_path: Path, share: float) -> None:
    """Wherever the file ends too early, it is named together with what to do."""
    path = tmp_path / "checkpoint.safetensors"
    write_checkpoint(path, checkpoint())
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(TrainingError, match=r"not a whole training checkpoint.*Delete it"):
        read_checkpoint(path)


def test_a_head_is_not_a_checkpoint(tmp_path: Path) -> None:
    """Another safetensors file is refused by what it lacks."""
    path = tmp_path / "checkpoint.safetensors"
    mx.save_safetensors(str(path), {"mtp.norm.weight": mx.ones(4)})
    with pytest.raises(TrainingError, match="not a whole training checkpoint"):
        read_checkpoint(path)


_WRITE_FOR_EVER = """
import sys
from pathlib import Path
from tests.training.test_training_files import checkpoint, passages
from mtplx.training.checkpoint import write_checkpoint
from mtplx.training.passages_file import write_passages
folder = Path(sys.argv[1])
two = checkpoint(), checkpoint(2.0)
while True:
    for one in two:
        write_checkpoint(folder / "checkpoint.safetensors", one)
        write_passages(folder / "own-00000.npz", passages()[:3])
        print("written", flush=True)
"""


@pytest.mark.slow
def test_a_kill_in_the_middle_of_writing_leaves_whole_files(tmp_path: Path) -> None:
    """Whenever the process is killed, what has the final name can be read."""
    rng = random.Random(1)
    for _ in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", _WRITE_FOR_EVER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        time.sleep(rng.random() * 0.3)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert len(read_passages([tmp_path / "own-00000.npz"])) == 3
        assert read_checkpoint(tmp_path / "checkpoint.safetensors").step == 40


_FULL_DISK = """
import resource, sys
from pathlib import Path
from tests.training.test_training_files import checkpoint, passages
from mtplx.errors import FileAccessError
from mtplx.training.checkpoint import write_checkpoint
from mtplx.training.passages_file import write_passages
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
folder = Path(sys.argv[1])
for write, name, what in (
    (write_checkpoint, "checkpoint.safetensors", checkpoint()),
    (write_passages, "own-00000.npz", passages()),
):
    try:
        write(folder / name, what)
    except FileAccessError as error:
        print(error)
"""


def test_a_disk_that_takes_no_more_is_a_file_error(tmp_path: Path) -> None:
    """What could not be written is named, and nothing of it is left."""
    command = [sys.executable, "-c", _FULL_DISK, str(tmp_path)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = said.splitlines()
    assert [line.split(":")[0].rsplit("/")[-1] for line in lines] == [
        "checkpoint.safetensors",
        "own-00000.npz",
    ]
    assert all("larger than this system allows" in line for line in lines)
    assert list(tmp_path.iterdir()) == []
