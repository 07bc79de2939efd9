"""GGUF models that keep float16, as on a GPU."""

from pathlib import Path

import mlx.core as mx
import pytest

from mtplx.cache import RecurrentCache
from mtplx.loading.gguf_file import open_gguf
from mtplx.loading.gguf_model import GgufModel, gguf_model
from mtplx.models.drafter import HeadDrafter
from mtplx.state import DecodeState
from tests.attended import watch_attention
from tests.loading.gguf_conversion import CASES, stored_weights, write_case
from tests.loading.test_gguf_hybrids import MORE, PROMPT, reference, with_head
from tests.tiny import close, finish, plain, start

HALF = mx.float16
ROUNDING = (
    1e-2  # of the largest logit: 0.8 % in Gemma 3, whose norms make the most of it, else 0.05 %
)


def read(path: Path, kv_dtype: mx.Dtype) -> GgufModel:
    return gguf_model(open_gguf(path), 512, packed=False, kv_dtype=kv_dtype)


def logits_of(model: GgufModel) -> mx.array:
    target = model.target
    return target.logits(target.normalise(target.forward(mx.array(PROMPT), target.make_cache())))


@pytest.mark.parametrize("arch", CASES)
def test_logits_are_those_of_float32_but_for_rounding(arch: str, tmp_path: Path) -> None:
    """Of every architecture; recurrent states stay float32."""
    path = write_case(tmp_path / "a.gguf", CASES[arch], stored_weights(arch, reference(arch)[0]))
    half, whole = read(path, HALF), read(path, mx.float32)
    assert close(logits_of(half), logits_of(whole), bound=ROUNDING)
    assert not close(logits_of(half), logits_of(whole))
    cache = half.target.make_cache()
    half.target.forward(mx.array(PROMPT), cache)
    for layer in cache:
        kept = mx.float32 if isinstance(layer, RecurrentCache) else HALF
        assert {array.dtype for array in layer.state} == {kept}


@pytest.mark.parametrize("arch", ["qwen35", "qwen35moe"])
def test_a_head_in_the_file_keeps_what_its_trunk_keeps(
    arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its drafts, at every depth, leave the greedy text as it is.

    No attention, of the trunk or of the head, is given other types than that.
    """
    trunk, head = with_head(arch)
    model = read(write_case(tmp_path / "a.gguf", CASES[arch], trunk | head, **MORE), HALF)
    assert model.head is not None
    types = watch_attention(monkeypatch)
    text = plain(model.target, PROMPT)
    for depth in range(1, 5):
        drafter = HeadDrafter(model.head.on(model.target))
        state = DecodeState(model.target, drafter)
        assert finish(start(state, PROMPT, depth=depth)) == text
        assert {array.dtype for layer in drafter.cache for array in layer.state} == {HALF}
    assert types
    assert all(kinds == {HALF} for kinds in types)


@pytest.mark.slow
def test_the_default_model_says_the_same(smollm2_path: Path) -> None:
    """Logits differ by less than a hundredth of their spread, and the best token stays."""
    half, whole = (read(smollm2_path, dtype) for dtype in (HALF, mx.float32))
    tokens = mx.array(list(range(1000, 1048)))
    found, expected = (
        model.target.logits(
            model.target.normalise(model.target.forward(tokens, model.target.make_cache()))
        )
        for model in (half, whole)
    )
    assert (mx.abs(found - expected).max() < 0.01 * mx.std(expected)).item()
    assert mx.array_equal(mx.argmax(found, axis=-1), mx.argmax(expected, axis=-1))
