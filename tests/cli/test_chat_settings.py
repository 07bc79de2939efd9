"""What the settings file and the model's files say reaches a conversation."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mtplx.cli.app import run
from mtplx.config_edit import set_setting

Opened = Callable[..., Any]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """The settings that a command line gives a model's conversation."""
    for kind in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "HF"))
    starts: list[Any] = []

    def talk(start: object) -> int:
        starts.append(start)
        return 0

    monkeypatch.setattr("mtplx.chat.talk.talk", talk)

    def open_it(*arguments: str | Path, model: str | Path | None = None) -> Any:
        assert run(["--blas", "mlx", "chat", *map(str, arguments)]) == 0
        start = starts.pop()
        return start.open_model(str(model or start.first.model), None)[1]

    return open_it


def configure(tmp_path: Path, *keys: str, value: object) -> None:
    set_setting(tmp_path / "CONFIG" / "mtplx" / "config.toml", keys, value)


def test_a_conversation_has_what_is_set_and_what_is_said(
    opened: Opened, tmp_path: Path, tiny: Path
) -> None:
    """For the model, with flags before it; and the context as the length of a reply."""
    configure(tmp_path, "system", value="Be kind.")
    configure(tmp_path, "models", str(tiny), "top_k", value=20)
    settings = opened("-m", tiny, "--temp", "0.3")
    assert settings.system == "Be kind."
    assert (settings.params.top_k, settings.params.temperature) == (20, 0.3)
    assert settings.params.max_tokens == 1024


def test_the_model_of_the_settings_is_opened(opened: Opened, tmp_path: Path, tiny: Path) -> None:
    """By an alias; what another model is to have is not taken for it."""
    configure(tmp_path, "aliases", "mine", value=str(tiny))
    configure(tmp_path, "model", value="mine")
    configure(tmp_path, "models", "other", "top_k", value=7)
    configure(tmp_path, "models", "mine", "top_k", value=5)
    assert opened().params.top_k == 5


def test_a_depth_of_the_settings_gives_way_where_nothing_can_draft(
    opened: Opened, tmp_path: Path, tiny: Path
) -> None:
    """The same settings serve models with and without a head."""
    configure(tmp_path, "depth", value=3)
    assert opened("-m", tiny, "--draft", "greedy").depth is None
    assert opened("-m", tiny, "--draft", "lookup").depth == 3
    configure(tmp_path, "depth", value="off")
    assert not opened("-m", tiny, "--draft", "lookup").drafts


def test_a_model_that_is_changed_to_has_its_own(
    opened: Opened, tmp_path: Path, tiny: Path, tiny_head: Path
) -> None:
    """Its section of the settings; the head on the command line is for the first."""
    other = tmp_path / "other.gguf"
    other.write_bytes(tiny.read_bytes()[:-4] + b"\0\0\0\0")
    configure(tmp_path, "models", str(other), "top_k", value=9)
    assert opened("-m", tiny, "--head", tiny_head).params.top_k == 0
    assert opened("-m", tiny, "--head", tiny_head, model=other).params.top_k == 9
