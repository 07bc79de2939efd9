"""The comparisons of this suite once more with MLX's own BLAS, where none allows a difference."""

import subprocess
import sys
from pathlib import Path

import pytest

from mtplx.blas import serving

ROOT = Path(__file__).parents[1]
EXACT = [
    "tests/test_state.py",
    "tests/test_decode.py",
    "tests/models/test_llama.py",
    "tests/models/test_mla.py",
    "tests/families/test_deepseek.py",
    "tests/families/test_mimo_v2.py",
    "tests/families/test_nemotron.py",
    "tests/undo/test_every_kind.py",
    "tests/undo/test_turns.py",
]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="MLX on macOS has Accelerate")
@pytest.mark.skipif(serving().name == "mlx", reason="this run is the exact one")
@pytest.mark.parametrize("path", EXACT)
def test_with_mlxs_own_blas_equal_means_bit_for_bit(path: str) -> None:
    """Passes of any length, states after every acceptance position, greedy texts."""
    command = [sys.executable, "-m", "pytest", "--blas", "mlx", "-m", "not slow", path]
    command += ["-o", "faulthandler_timeout=300"]  # shows where it hangs, should it ever
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=900
    )
    assert "blas: mlx" in result.stdout
    assert result.returncode == 0, result.stdout
