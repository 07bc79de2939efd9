"""States in files: read back they are what they were, or the file is refused and stays."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import pytest

from mtplx.cache import QuantisedCache
from mtplx.errors import FileAccessError, PromptCacheError
from mtplx.loading.load import LoadedModel
from mtplx.models.drafter import Head
from mtplx.prompt_cache import load_prompt_cache, save_prompt_cache
from mtplx.speculation import Target
from mtplx.state import DecodeState
from mtplx.stats import DecodeStats
from tests.tiny import finish, random_prompt, start
from tests.undo.passes import hold_the_same
from tests.undo.targets import assert_holds, drafter_of, target_of
from tests.undo.tiny_models import VOCAB_SIZE

PROMPT = random_prompt(50, vocab_size=VOCAB_SIZE)
NEXT = [3, 1, 4, 1, 5]
NAMES = ["qwen3_5", "llama", "lfm2"]


@dataclass(frozen=True, slots=True)
class HeadOf:
    """A random head that says it was read from a file."""

    path: Path

    def on(self, target: Target) -> Head:
        return drafter_of(target).head  # type: ignore[arg-type]


def model_of(name: str, folder: Path, mark: str = "one") -> LoadedModel:
    """A model that says that its files are in a folder. mark: what tells it from others."""
    weights, head = folder / f"{mark}.gguf", folder / f"{mark}-head.gguf"
    weights.write_text(f"{name} {mark}")
    head.write_text(mark)
    tokenizer: Any = None
    return LoadedModel(name, weights, target_of(name), tokenizer, HeadOf(head), None, None, 0.0)  # type: ignore[arg-type]


def reply(state: DecodeState, prompt: list[int], *, depth: int = 3) -> tuple[list[int], int]:
    """The reply, and how many tokens of the prompt were read for it."""
    stats = DecodeStats()
    text = finish(start(state, prompt, depth=depth, drafting=depth > 0, stats=stats))
    return text, len(prompt) - stats.num_reused_tokens


def saved(model: LoadedModel, path: Path) -> DecodeState:
    """A state after a turn, which is also in a file."""
    state = model.new_state()
    reply(state, PROMPT)
    save_prompt_cache(state, model, path)
    return state


@pytest.mark.parametrize("name", NAMES)
def test_a_state_comes_back_as_it_was(name: str, tmp_path: Path) -> None:
    """Every layer, the head, the tokens and the checkpoints; and so does the next turn."""
    model, path = model_of(name, tmp_path), tmp_path / "cache"
    state = saved(model, path)
    other = load_prompt_cache(path, model)
    assert_holds(other, state.token_ids)
    assert hold_the_same(other.cache, state.cache)
    assert [c.length for c in other.checkpoints] == [c.length for c in state.checkpoints]
    for prompt in ([*state.token_ids, *NEXT], [*PROMPT[:-4], *NEXT], [*PROMPT[:20], *NEXT]):
        assert reply(other, prompt) == reply(state, prompt)
        assert_holds(other, state.token_ids)


def test_a_state_that_read_nothing_can_be_saved(tmp_path: Path) -> None:
    """It comes back as empty as it was."""
    model, path = model_of("qwen3_5", tmp_path), tmp_path / "cache"
    save_prompt_cache(model.new_state(), model, path)
    assert reply(load_prompt_cache(path, model), PROMPT) == reply(model.new_state(), PROMPT)


@pytest.mark.parametrize("name", NAMES)
def test_a_state_that_was_not_drafted_from_can_be_drafted_from_later(
    name: str, tmp_path: Path
) -> None:
    """The head then reads what it lacks."""
    model, path = model_of(name, tmp_path), tmp_path / "cache"
    state = model.new_state()
    reply(state, PROMPT, depth=0)
    save_prompt_cache(state, model, path)
    other = load_prompt_cache(path, model)
    reply(other, [*state.token_ids, *NEXT], depth=2)
    assert_holds(other, other.token_ids)


def test_quantised_rows_come_back(tmp_path: Path) -> None:
    """Of a model whose attention is kept in eight bits."""
    cache = QuantisedCache(bits=8, group_size=32)
    rows = mx.random.normal((1, 2, 5, 32))
    cache.update_and_fetch(rows, rows + 1)
    other = QuantisedCache(bits=8, group_size=32)
    other.restore(cache.snapshot(whole=True))
    for found, expected in zip(other.keys_and_values(), cache.keys_and_values(), strict=True):
        assert all(mx.array_equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.7, 0.999])
def test_a_truncated_file_is_refused(share: float, tmp_path: Path) -> None:
    """By name, and it stays as it is."""
    model, path = model_of("qwen3_5", tmp_path), tmp_path / "cache"
    saved(model, path)
    content = path.read_bytes()[: int(share * path.stat().st_size)]
    path.write_bytes(content)
    with pytest.raises(PromptCacheError, match="cache"):
        load_prompt_cache(path, model)
    assert path.read_bytes() == content


@pytest.mark.parametrize("place", [0, 9, 40, 0.2, 0.5, 0.9, -1])
def test_a_damaged_file_is_refused(place: float, tmp_path: Path) -> None:
    """One flipped bit, wherever it is."""
    model, path = model_of("qwen3_5", tmp_path), tmp_path / "cache"
    saved(model, path)
    content = bytearray(path.read_bytes())
    content[place if isinstance(place, int) else int(place * len(content))] ^= 4
    path.write_bytes(content)
    with pytest.raises(PromptCacheError, match="cache"):
        load_prompt_cache(path, model)


@pytest.mark.parametrize("content", [b"", b"hello", b"{}", b"\0" * 100])
def test_what_is_no_prompt_cache_is_refused(content: bytes, tmp_path: Path) -> None:
    """Whatever else the file is; another model's weights too."""
    model, path = model_of("qwen3_5", tmp_path), tmp_path / "cache"
    path.write_bytes(content)
    with pytest.raises(PromptCacheError, match="not a prompt cache"):
        load_prompt_cache(path, model)
    mx.save_safetensors(str(tmp_path / "weights.safetensors"), {"a": mx.zeros(3)})
    with pytest.raises(PromptCacheError, match="not a prompt cache"):
        load_prompt_cache(tmp_path / "weights.safetensors", model)


def test_another_models_or_heads_file_is_refused(tmp_path: Path) -> None:
    """What was read by one model means nothing to another, nor does a head's state."""
    model, path = model_of("qwen3_5", tmp_path), tmp_path / "cache"
    saved(model, path)
    other = model_of("qwen3_5", tmp_path, "two")
    with pytest.raises(PromptCacheError, match="another model"):
        load_prompt_cache(path, other)
    with pytest.raises(PromptCacheError, match="another draft head"):
        load_prompt_cache(path, replace(model, head=other.head))
    with pytest.raises(PromptCacheError, match="other kinds"):
        load_prompt_cache(path, replace(model, target=target_of("llama")))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileAccessError, match="nowhere"):
        load_prompt_cache(tmp_path / "nowhere", model_of("qwen3_5", tmp_path))


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    """A full disk costs the new state and not the old one."""
    model, path = model_of("qwen3_5", tmp_path), tmp_path / "cache"
    state = saved(model, path)
    before = path.read_bytes()
    with (
        patch("mtplx.files.os.replace", side_effect=OSError(28, "No space left on device")),
        pytest.raises(FileAccessError, match="disk is full"),
    ):
        save_prompt_cache(state, model, path)
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cache", "one-head.gguf", "one.gguf"]
