"""What stands between a command line and a prompt."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chat.typist import CONTROL_D, at_terminal
from tests.tiny_gguf import write_model

BUDGET_S = 1.5
ROOT = Path(__file__).parents[2]
HEAVY = ["mlx.core", "numpy", "gguf", "tokenizers", "jinja2", "mlx_lm", "transformers"]
PROGRAM = f"""
import sys
from mtplx.cli.app import verb_command
verb_command("chat")
import mtplx.chat.completion, mtplx.chat.editor, mtplx.chat.talk
print([name for name in {HEAVY} if name in sys.modules])
"""


def test_a_prompt_needs_nothing_of_a_model() -> None:
    """All that is imported before the first prompt is free of arrays, tokenizers and templates."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.slow
def test_the_prompt_comes_before_the_model(tmp_path: Path) -> None:
    """There is a prompt in a second and a half, and before anything is told of the model.

    On a machine that is busy, in as many times of what importing the line editor alone takes.
    """
    model = write_model(tmp_path / "tiny.gguf")
    started_s = time.monotonic()
    subprocess.run([sys.executable, "-c", "import prompt_toolkit.shortcuts"], check=True)
    alone_s = time.monotonic() - started_s
    started_s = time.monotonic()
    with at_terminal(["--model", model], tmp_path) as typist:
        typist.at_prompt()
        past_s = time.monotonic() - started_s
        assert b"MTP" not in typist.output
        typist.press(CONTROL_D)
        assert typist.exit_code() == 0
    assert past_s < max(BUDGET_S, BUDGET_S / 0.2 * alone_s)
