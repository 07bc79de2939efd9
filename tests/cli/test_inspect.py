import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run

# What a process that loads a model and answers has held at most.
MEASURE = """
import sys
from mtplx import generate, load
from mtplx.loading.memory import peak_resident_bytes

generate(load(sys.argv[1]), "Hello", max_tokens=2, raw=True)
print(peak_resident_bytes())
"""


def test_it_tells_what_a_model_is(mtplx: Run, tiny: Path, tiny_head: Path) -> None:
    """Architecture, tensors, head, memory and load time are in the text."""
    ran = mtplx("inspect", tiny, "--head", tiny_head)
    shown = ran.out.decode()
    assert ran.code == 0
    for words in ("llama", "cc0-1.0", "F32", str(tiny_head), "measured", "1,024 tokens"):
        assert words in shown
    assert shown.isprintable() is False  # lines
    assert all(line.isprintable() for line in shown.splitlines())


def test_headers_alone_are_enough(mtplx: Run, tiny: Path) -> None:
    """With --no-load nothing is loaded and the peak is an estimate."""
    whole = json.loads(mtplx("inspect", tiny, "--no-load", "--json").out)
    assert whole["loaded"] is None
    assert whole["need"]["loading_peak_bytes"] > whole["need"]["weights_bytes"] > 0
    assert b"estimated" in mtplx("inspect", tiny, "--no-load").out


def test_without_a_head_it_says_why(mtplx: Run, tiny: Path) -> None:
    """The reason that loading gives is told."""
    whole = json.loads(mtplx("inspect", tiny, "--json").out)
    assert whole["loaded"]["head"] is None
    assert "no MTP head was found" in whole["loaded"]["no_head_reason"]
    assert b"none: no MTP head was found" in mtplx("inspect", tiny).out


def test_what_cannot_be_loaded_is_described_first(mtplx: Run, tmp_path: Path) -> None:
    """A file with an unreadable type is listed, and the error follows."""
    from tests.tiny_gguf import write_model

    ran = mtplx("inspect", write_model(tmp_path / "odd.gguf", odd_type=True))
    assert ran.code == 1
    assert b"(not readable yet)" in ran.out
    assert ran.err.startswith("mtplx: ")
    assert "blk.0.attn_q.weight" in ran.err


def stated_and_measured(mtplx: Run, home: dict[str, str], model: Path) -> dict[str, float]:
    """The peak by the headers and as inspect measures it, over that of a process that answers."""
    estimated = json.loads(mtplx("inspect", model, "--no-load", "--json").out)
    loaded = json.loads(mtplx("inspect", model, "--json").out)
    command = [sys.executable, "-c", MEASURE, str(model)]
    done = subprocess.run(command, env=home, capture_output=True, check=True, text=True)
    measured = int(done.stdout)
    return {
        "estimated": estimated["need"]["loading_peak_bytes"] / measured,
        "loaded": loaded["loaded"]["peak_bytes"] / measured,
    }


@pytest.mark.slow
def test_memory_of_the_default_model_is_true(
    mtplx: Run, home: dict[str, str], smollm2_path: Path
) -> None:
    """Both stated peaks are within 15 % of what a process that answers takes."""
    ratios = stated_and_measured(mtplx, home, smollm2_path)
    assert all(abs(ratio - 1) < 0.15 for ratio in ratios.values()), ratios


@pytest.mark.slow
def test_memory_of_a_folder_is_true(mtplx: Run, home: dict[str, str], tmp_path: Path) -> None:
    """The same for a folder of 60 MB, which mlx-lm loads."""
    from tests.tiny_folder import write_folder

    ratios = stated_and_measured(mtplx, home, write_folder(tmp_path / "model", hidden_size=1536))
    assert all(abs(ratio - 1) < 0.15 for ratio in ratios.values()), ratios


def test_a_head_is_calibrated(mtplx: Run, hybrid: Path) -> None:
    """On a text that is given, under every choice; without a head there is nothing to do."""
    text = "How a head is fed is told by how well it foresees."
    ran = mtplx("inspect", hybrid, "--calibrate", "--text", text)
    shown = ran.out.decode()
    assert ran.code == 0, ran.err
    assert "replayed at 39 places" in shown
    assert shown.count("after   before") == shown.count("before  after") == 1
    assert "(halves of its input swapped)" in shown
    for arguments, code, told in (
        (["--no-load", "--calibrate"], 2, "--no-load"),
        (["--text", text], 2, "--calibrate"),
        (["--calibrate", "--text", "short"], 2, "5 tokens"),
    ):
        ran = mtplx("inspect", hybrid, *arguments)
        assert (ran.code, ran.err.count("\n")) == (code, 1)
        assert told in ran.err
    ran = mtplx("inspect", hybrid.parent / "llama", "--calibrate")
    assert ran.code == 1
    assert "nothing to calibrate" in ran.err
