from pathlib import Path

import pytest

from tests.chat.hostile import conversations, torment


@pytest.mark.slow
def test_no_keys_signals_or_sizes_break_anything(tmp_path: Path) -> None:
    """Random keys, pastes, commands, resizes and kills: no traceback, every file whole."""
    torment(20, seed=7, home=tmp_path)
    assert conversations(tmp_path)
