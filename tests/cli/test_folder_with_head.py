"""A checkpoint folder with an MTP head of its own, at the command line."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.families.qwen import write_served  # imports MLX and torch

    return write_served(tmp_path_factory.mktemp("served"))


@pytest.mark.slow
def test_generate_and_chat_draft_with_it(mtplx: Run, folder: Path) -> None:
    """`--depth 2` tells of drafts, and a conversation ends as it should."""
    asked = ("generate", "--model", folder, "--json", "--raw", "--depth", "2", "--draft-stop", "0")
    ran = mtplx(*asked, "--temp", "0", "--max-tokens", "12", "What is drafted is checked.")
    assert json.loads(ran.out)["drafts"]
    assert "No drafting" not in ran.err
    said = mtplx("chat", "--model", folder, "--max-tokens", "8", stdin=b"Hello\n")
    assert said.code == 0, said.err
    assert b"MTP head" in said.out
