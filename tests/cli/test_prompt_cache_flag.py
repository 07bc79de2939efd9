"""`mtplx generate --prompt-cache`: what one run read, the next need not read again."""

import json
from pathlib import Path

from tests.cli.conftest import Run

ASK = ("generate", "--raw", "--json", "--temp", "0", "--max-tokens", "8")


def test_a_second_run_goes_on_from_the_first(
    mtplx: Run, tiny: Path, tiny_head: Path, tmp_path: Path
) -> None:
    """The same text as without, and only what is new is read; the file then holds that too."""
    asked = (*ASK, "--model", tiny, "--head", tiny_head)
    cached = (*asked, "--prompt-cache", tmp_path / "story")
    first = json.loads(mtplx(*cached, "Once upon a time there was").out)
    assert first["num_reused_tokens"] == 0
    told = "Once upon a time there was a king. "
    second = json.loads(mtplx(*cached, told).out)
    assert second["token_ids"] == json.loads(mtplx(*asked, told).out)["token_ids"]
    assert second["num_reused_tokens"] >= first["num_prompt_tokens"] - 2
    third = json.loads(mtplx(*cached, told).out)
    assert third["num_reused_tokens"] >= second["num_prompt_tokens"] - 2


def test_a_file_that_cannot_serve_is_named(mtplx: Run, tiny: Path, tmp_path: Path) -> None:
    """Another file, and a folder that is not there: one line, and nothing is overwritten."""
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    ran = mtplx(*ASK, "--model", tiny, "--prompt-cache", path, "hello")
    assert (ran.code, path.read_text()) == (1, "mine")
    assert "not a prompt cache" in ran.err
    assert "Traceback" not in ran.err
    ran = mtplx(*ASK, "--model", tiny, "--prompt-cache", tmp_path / "no" / "file", "hello")
    assert ran.code == 2
    assert "--prompt-cache" in ran.err


def test_a_split_model_has_no_prompt_cache(mtplx: Run, tiny: Path, tmp_path: Path) -> None:
    """Refused before anything is loaded, not when the reply is there."""
    ran = mtplx(*ASK, "--model", tiny, "--distributed", "--prompt-cache", tmp_path / "a", "hello")
    assert ran.code == 2
    assert "--prompt-cache is for a model on one machine" in ran.err
