"""Latent attention over short blocks: the bits of single rows, without expanding the context."""

import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from mtplx.cache import AttentionCache
from mtplx.depth import MAX_DEPTH
from mtplx.models import stepwise
from mtplx.models.mla import COVERED, MAX_ROWS, SCALED, SPARSE, absorb_short_blocks
from tests.tiny import close, same

WIDTH, HEADS, CONTEXT = 64, 4, 40
FIELDS = {
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "head_dim": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "max_position_embeddings": 512,
    "mla_use_output_gate": True,
    "mla_scale_q_lora": True,
    "mla_scale_kv_lora": True,
    "index_head_dim": 64,
    "index_n_heads": 2,
    "index_topk": CONTEXT + 6,  # reached in the middle of a block
}
ARGUMENTS = {"kimi_k3": "TextArgs"}


def attention_module(name: str, **fields: Any) -> Any:
    """mlx-lm's attention module `file.Class` with random weights; other fields are 1."""
    file, kind = name.split(".")
    module = importlib.import_module(f"mlx_lm.models.{file}")
    arguments = getattr(module, ARGUMENTS.get(file, "ModelArgs"))
    required = {
        field.name: 1
        for field in dataclasses.fields(arguments)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    mx.random.seed(7)
    built = getattr(module, kind)(arguments.from_dict(required | FIELDS | fields))
    mx.eval(built.parameters())
    return built


class Holder(nn.Module):
    """A model of one attention layer."""

    def __init__(self, attention: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.attention = attention


def rows_of(attention: Any, x: mx.array, blocks: list[int]) -> mx.array:
    """The output for x [1, T, D] passed in blocks of these lengths."""
    first, second, start, outputs = AttentionCache(), AttentionCache(), 0, []
    kind = type(attention).__name__
    cache = (first, second) if SPARSE.endswith(kind) else first
    for length in blocks:
        block = x[:, start : start + length]
        mask = first.make_mask(length, return_array=True)
        scale = (1 + mx.arange(start, start + length)[:, None] / 64).astype(x.dtype)
        more = (scale,) if SCALED.endswith(kind) else ()
        outputs.append(attention(block, *more, mask, cache))
        start += length
    return mx.concatenate(outputs, axis=1)


def random_rows(num_rows: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.random.normal((1, num_rows, WIDTH), key=mx.random.key(3)).astype(dtype)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "4 bits"])
@pytest.mark.parametrize("name", COVERED)
def test_a_short_block_gives_the_rows_that_mlx_lm_gives_one_by_one(name: str, kind: str) -> None:
    """For every length up to the longest, dense and quantised."""
    attention = attention_module(name)
    if kind == "bfloat16":
        attention.set_dtype(mx.bfloat16)
    elif kind == "4 bits":
        nn.quantize(attention, group_size=32, bits=4)
    x = random_rows(CONTEXT + MAX_ROWS, mx.bfloat16 if kind == "bfloat16" else mx.float32)
    expected = rows_of(attention, x, [CONTEXT, *[1] * MAX_ROWS])
    assert absorb_short_blocks(Holder(attention)) == ()
    for length in (2, 3, 5, 8, MAX_ROWS):
        found = rows_of(attention, x, [CONTEXT, length])
        assert same(found, expected[:, : CONTEXT + length])


@pytest.mark.parametrize("name", COVERED)
def test_a_long_block_is_still_mlx_lms_own(name: str) -> None:
    """Prefill keeps its bits, and agrees with the short blocks to rounding."""
    attention, x = attention_module(name), random_rows(CONTEXT)
    expected = rows_of(attention, x, [CONTEXT])
    absorb_short_blocks(Holder(attention))
    assert mx.array_equal(rows_of(attention, x, [CONTEXT]), expected).item()
    assert close(rows_of(attention, x, [MAX_ROWS, MAX_ROWS, CONTEXT - 2 * MAX_ROWS]), expected)


@pytest.mark.parametrize(
    "name",
    ["deepseek_v3.DeepseekV3Attention", "bailing_moe_v3.BailingMLA", "kimi_k3.KimiK3MLAAttention"],
)
def test_without_a_query_rank_the_query_is_projected_at_once(name: str) -> None:
    """The other layout of the query's weights."""
    attention, x = attention_module(name, q_lora_rank=None), random_rows(CONTEXT + 4)
    expected = rows_of(attention, x, [CONTEXT, 1, 1, 1, 1])
    absorb_short_blocks(Holder(attention))
    assert same(rows_of(attention, x, [CONTEXT, 4]), expected)


def peak_bytes(attention: Any, context: int) -> int:
    """Memory that a block of two rows takes beyond what is held before it."""
    cache, x = AttentionCache(), random_rows(context + 2)
    mx.eval(attention(x[:, :context], cache.make_mask(context, return_array=True), cache))
    mask = cache.make_mask(2, return_array=True)
    mx.eval(x, mask, cache.state)
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(attention(x[:, context:], mask, cache))
    return mx.get_peak_memory() - before


def test_two_rows_do_not_expand_the_context() -> None:
    """Their memory is far below one head's expanded keys for every head; mlx-lm's own is above."""
    attention, context = attention_module("deepseek_v3.DeepseekV3Attention"), 510
    expanded = 4 * HEADS * context * FIELDS["qk_nope_head_dim"]
    assert peak_bytes(attention, context) > expanded
    absorb_short_blocks(Holder(attention))
    assert peak_bytes(attention, context) < 0.5 * expanded


def test_absorbing_twice_is_absorbing_once() -> None:
    """A model that was loaded before is left as it is, and its weights keep their names."""
    attention = attention_module("deepseek_v3.DeepseekV3Attention")
    names, holder = list(attention), Holder(attention)
    assert absorb_short_blocks(holder) == ()
    kind = type(attention)
    assert absorb_short_blocks(holder) == ()
    assert type(attention) is kind
    assert list(attention) == names


class Unheard(nn.Module):
    """A latent attention that a later mlx-lm might bring."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.embed_q = self.unembed_out = nn.Linear(1, 1)


def test_latent_attention_that_is_not_known_is_named() -> None:
    """It would be slow in silence."""
    assert absorb_short_blocks(Holder(Unheard())) == ("test_mla.Unheard",)


def expanding_classes() -> Iterator[str]:
    """Every class in the installed mlx-lm that takes another path for one row than for more."""
    import mlx_lm.models

    for found in pkgutil.iter_modules(mlx_lm.models.__path__):
        text = (Path(mlx_lm.models.__path__[0]) / f"{found.name}.py").read_text()
        for part in re.split(r"^class ", text, flags=re.MULTILINE)[1:]:
            if "self.embed_q = MultiLinear" in part:
                yield f"{found.name}.{part.partition('(')[0]}"


def test_every_latent_attention_of_the_installed_mlx_lm_is_covered() -> None:
    """A release that brings another shows here."""
    assert set(expanding_classes()) == set(COVERED)


def test_the_longest_round_is_a_short_block() -> None:
    """The deepest draft and the pending token: computed as single rows are, here and by mixers."""
    assert min(MAX_ROWS, stepwise.MAX_ROWS) >= MAX_DEPTH + 1
