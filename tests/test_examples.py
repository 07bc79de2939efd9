import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHOWN = {
    "chat_turns": "prompt tokens reused]",
    "generate": "sky",
    "sampling": "ended by stop",
    "stream": "per second]",
    "with_and_without_mtp": "same tokens: True",
}


def test_every_example_is_listed() -> None:
    """What is run below is all there is."""
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == SHOWN.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_examples_run(name: str, smollm2_path: Path) -> None:
    """Each example ends well on the default model and shows what it is about."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py")],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert SHOWN[name] in done.stdout
