"""Keys and values kept in float16: half the bytes, every row rounded once, and nothing else."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest

from mtplx.cache import AttentionCache, SinkCache, WindowCache
from mtplx.loading.load import LoadedModel, load
from mtplx.loading.tuned import profile_key
from mtplx.models.attention import Rows, attend, rows_at
from mtplx.models.drafter import HeadDrafter
from mtplx.models.head import LlamaHead
from mtplx.models.llama import LlamaTarget
from mtplx.prompt_cache import load_prompt_cache, save_prompt_cache
from mtplx.state import DecodeState
from tests.tiny import close, finish, plain, random_prompt, start, tiny_head, tiny_target
from tests.tiny_gguf import write_head, write_model

HALF = mx.float16
ROUNDING = 2e-3  # of the largest logit: float16 keeps 11 bits of every key and value
PROMPT = random_prompt(20)

Cache = AttentionCache | WindowCache
KINDS: dict[str, Callable[[mx.Dtype], Cache]] = {
    "attention": lambda dtype: AttentionCache(dtype=dtype),
    "sinks": lambda dtype: SinkCache(window=6, dtype=dtype),
    "window": lambda dtype: WindowCache(12, dtype=dtype),
}


def some_rows(num_rows: int, seed: int) -> mx.array:
    return mx.random.normal((1, 2, num_rows, 8), key=mx.random.key(seed))


def passed(cache: Cache, num_rows: int) -> tuple[mx.array, mx.array]:
    """What a pass of random rows, the same at the same place, fetches."""
    return cache.update_and_fetch(*(some_rows(num_rows, 2 * cache.offset + i) for i in range(2)))


def assert_rounded(half: Cache, whole: Cache, num_rows: int) -> None:
    """A pass of one fetches what a pass of the other does, in float16."""
    for found, expected in zip(passed(half, num_rows), passed(whole, num_rows), strict=True):
        assert (found.dtype, expected.dtype) == (HALF, mx.float32)
        assert mx.array_equal(found, expected.astype(HALF))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_rounded_once_and_take_half_the_bytes(kind: str) -> None:
    """However they come, where buffers grow, and after a part of a pass is undone."""
    half, whole = KINDS[kind](HALF), KINDS[kind](mx.float32)
    for num_rows, num_kept in ((5, 5), (1, 1), (300, 300), (7, 3), (4, 0), (1, 1), (2, 1)):
        assert_rounded(half, whole, num_rows)
        for cache in (half, whole):
            cache.keep(num_kept)
        assert 2 * half.num_bytes == whole.num_bytes
    for cache in (half, whole):
        cache.rewind(cache.offset - 5)
    assert_rounded(half, whole, 3)


@pytest.mark.parametrize("dtype", [HALF, mx.float32], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_restored_is_of_the_caches_type(kind: str, dtype: mx.Dtype) -> None:
    """Whatever the type of the cache that the rows were saved from."""
    saved, half = KINDS[kind](dtype), KINDS[kind](HALF)
    passed(saved, 40)
    half.restore(saved.snapshot(whole=True))
    other = KINDS[kind](mx.float32)
    passed(other, 40)
    assert_rounded(half, other, 3)


def test_without_a_type_rows_stay_as_they_come() -> None:
    """Of models that are not from GGUF."""
    cache = AttentionCache()
    keys, _ = cache.update_and_fetch(*[some_rows(3, 0).astype(mx.bfloat16)] * 2)
    assert keys.dtype == mx.bfloat16


@pytest.mark.parametrize("num_rows", [1, 4])
@pytest.mark.parametrize("way", ["MLX's own", "MLX's own, masked", "put together"])
def test_attention_makes_no_copy_of_the_cache(way: str, num_rows: int) -> None:
    """What it takes meanwhile is less than the keys alone; the result is float32."""
    length = 8192
    keys, values, q = (
        mx.random.normal((1, 2, count, 128), key=mx.random.key(i))
        for i, count in enumerate((length, length, num_rows))
    )
    rows = rows_at(length - num_rows, num_rows, 128, 1e4)
    if way != "put together":
        rows = Rows(rows.offset, mask=rows.mask if "masked" in way else None)
    expected = attend(q, keys, values, rows)
    keys, values = keys.astype(HALF), values.astype(HALF)
    mx.eval(
        q, keys, values, expected, *(a for a in (rows.cos, rows.sin, rows.mask) if a is not None)
    )
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    found = attend(q, keys, values, rows)
    mx.eval(found)
    assert mx.get_peak_memory() - before < keys.nbytes
    assert found.dtype == mx.float32
    assert close(found, expected, bound=ROUNDING)


def half_target(seed: int = 0) -> LlamaTarget:
    return replace(tiny_target(seed), kv_dtype=HALF)


def logits_of(target: LlamaTarget) -> mx.array:
    return target.logits(target.normalise(target.forward(mx.array(PROMPT), target.make_cache())))


def test_logits_are_those_of_float32_but_for_rounding() -> None:
    """And rounded they are."""
    found, expected = logits_of(half_target()), logits_of(tiny_target())
    assert found.dtype == mx.float32
    assert close(found, expected, bound=ROUNDING)
    assert not close(found, expected)


@pytest.mark.parametrize("depth", range(1, 5))
def test_drafts_do_not_change_a_greedy_text(depth: int) -> None:
    """Of a trunk and a head that both keep float16."""
    for seed in range(3):
        target = half_target(seed)
        drafter = HeadDrafter(LlamaHead(target, tiny_head(seed), kv_dtype=HALF))
        state = DecodeState(target, drafter)
        assert finish(start(state, PROMPT, depth=depth)) == plain(target, PROMPT)
        kept = [array for layer in (*state.cache, *drafter.cache) for array in layer.state]
        assert {array.dtype for array in kept} == {HALF}


@pytest.fixture
def model(tmp_path: Path) -> LoadedModel:
    """A tiny GGUF model with a head in a file, which keeps float16."""
    path = write_model(tmp_path / "tiny.gguf")
    write_head(path.with_name("tiny.mtp.safetensors"), path)
    loaded = load(path)
    assert isinstance(loaded.target, LlamaTarget)
    return replace(loaded, target=replace(loaded.target, kv_dtype=HALF))


def test_a_file_of_a_state_keeps_the_type(model: LoadedModel, tmp_path: Path) -> None:
    """Rows of trunk and head come back bit for bit, and the text goes on alike."""
    state = model.new_state()
    finish(start(state, PROMPT, depth=3))
    save_prompt_cache(state, model, tmp_path / "cache")
    other = load_prompt_cache(tmp_path / "cache", model)
    drafters = (state.drafter, other.drafter)
    assert all(isinstance(drafter, HeadDrafter) for drafter in drafters)
    layers = [[*s.cache, *s.drafter.cache] for s in (state, other)]  # type: ignore[union-attr]
    for one, two in zip(*layers, strict=True):
        snapshots = [layer.snapshot(whole=True).arrays for layer in (one, two)]
        for a, b in zip(*snapshots, strict=True):
            assert a.dtype == b.dtype == HALF
            assert mx.array_equal(a, b)
    prompt = [*state.token_ids, 3, 1]
    assert finish(start(other, prompt, depth=3)) == finish(start(state, prompt, depth=3))


def test_a_file_of_another_type_is_read_into_the_models_own(
    model: LoadedModel, tmp_path: Path
) -> None:
    """One that was written on a CPU, read on a GPU."""
    assert isinstance(model.target, LlamaTarget)
    whole = replace(model, target=replace(model.target, kv_dtype=mx.float32))
    state = whole.new_state()
    finish(start(state, PROMPT, depth=2))
    save_prompt_cache(state, whole, tmp_path / "cache")
    other = load_prompt_cache(tmp_path / "cache", model)
    prompt = [*state.token_ids, 3, 1]
    assert finish(start(other, prompt, depth=2)) == plain(model.target, prompt)
    assert isinstance(other.drafter, HeadDrafter)
    layers = (*other.cache, *other.drafter.cache)
    assert {array.dtype for layer in layers for array in layer.state} == {HALF}


@pytest.mark.parametrize(("on_gpu", "kind"), [(True, "float16"), (False, "float32")])
def test_a_profile_is_of_the_type_that_the_device_keeps(
    on_gpu: bool, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """float16 on a GPU, float32 on a CPU."""
    with monkeypatch.context() as patched:
        patched.setattr(mx.metal, "is_available", lambda: on_gpu)
        loaded = load(write_model(tmp_path / "tiny.gguf"))
    assert profile_key(loaded)["kv"] == kind
