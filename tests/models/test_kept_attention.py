"""Attention of mlx-lm's models over keys and values that are kept in another type."""

from dataclasses import replace

import mlx.core as mx
import mlx.nn as nn
import pytest

from mtplx.cache import RecurrentCache, single_caches
from mtplx.models.drafter import HeadDrafter
from mtplx.models.head import LlamaHead, TrunkParts
from mtplx.models.kept_attention import attends_as_kept
from mtplx.models.mlx_lm_target import MlxLmTarget, mlx_lm_target
from mtplx.speculation import LayerCache
from mtplx.state import DecodeState
from tests.attended import watch_attention
from tests.tiny import DIMS, close, finish, plain, random_prompt, start, tiny_head
from tests.undo.tiny_models import VOCAB_SIZE, build, config_of

HALF = mx.float16
ROUNDING = (
    1e-2  # of the largest logit: 0.8 % in Gemma 3, whose norms make the most of it, else 0.05 %
)
PROMPT = random_prompt(30, vocab_size=VOCAB_SIZE)
NAMES = ["gemma3_text", "lfm2", "qwen3_5", "qwen3_next"]  # what GGUF files are read into


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def target_of(name: str, kv_dtype: mx.Dtype | None) -> MlxLmTarget:
    model = build(name)
    attends_as_kept(model)
    return replace(mlx_lm_target(model, config_of(name), name), kv_dtype=kv_dtype)


def logits_of(target: MlxLmTarget, cache: list[LayerCache]) -> mx.array:
    return target.logits(target.normalise(target.forward(mx.array(PROMPT), cache)))


def test_keys_and_values_are_never_brought_to_another_type(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries come to theirs; logits are those of float32 but for rounding."""
    expected = logits_of(whole := target_of(name, None), whole.make_cache())
    target = target_of(name, HALF)
    types, cache = watch_attention(monkeypatch), target.make_cache()
    found = logits_of(target, cache)
    assert types
    assert all(kinds == {HALF} for kinds in types)
    assert found.dtype == mx.float32
    assert close(found, expected, bound=ROUNDING)
    assert not close(found, expected)
    for layer in single_caches(cache):
        kept = mx.float32 if isinstance(layer, RecurrentCache) else HALF
        assert {array.dtype for array in layer.state} == {kept}


def test_products_stay_in_the_type_of_the_activations(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What attention gives is brought back before the output matrix multiplies it."""
    target, types, product = target_of(name, HALF), set[mx.Dtype](), nn.Linear.__call__

    def watched(self: nn.Linear, x: mx.array) -> mx.array:
        types.add(x.dtype)
        return product(self, x)

    monkeypatch.setattr(nn.Linear, "__call__", watched)
    logits_of(target, target.make_cache())
    assert types == {mx.float32}


def test_a_model_that_keeps_what_it_computes_is_as_it_was(name: str) -> None:
    """Bit for bit, and asking twice changes no more than once."""
    before = mlx_lm_target(build(name), config_of(name), name)
    target = target_of(name, None)
    kinds = [type(module) for _, module in target.model.named_modules()]
    attends_as_kept(target.model)
    assert [type(module) for _, module in target.model.named_modules()] == kinds
    expected = logits_of(before, before.make_cache())
    assert mx.array_equal(logits_of(target, target.make_cache()), expected)


@pytest.mark.parametrize("depth", range(1, 5))
def test_drafts_do_not_change_a_greedy_text(name: str, depth: int) -> None:
    """Past the edges of windows, and with recurrent layers beside."""
    target = target_of(name, HALF)
    parts = TrunkParts(DIMS, target.embedding, target.lm_head)
    drafter = HeadDrafter(LlamaHead(parts, tiny_head(), kv_dtype=HALF))
    text = finish(start(DecodeState(target, drafter), PROMPT, depth=depth))
    assert text == plain(target, PROMPT)


def test_going_back_is_never_having_gone_further(name: str) -> None:
    """Of a pass of eight tokens five are undone; what follows sees the others alone."""
    target = target_of(name, HALF)
    caches = [target.make_cache(), target.make_cache()]
    logits = []
    for cache, block in zip(caches, ([*PROMPT[20:23], 1, 2, 3, 4, 5], PROMPT[20:23]), strict=True):
        for tokens, num_kept in ((PROMPT[:20], 20), (block, 3), (PROMPT[23:24], 1)):
            hidden = target.forward(mx.array(tokens), cache)
            for layer in cache:
                layer.keep(num_kept)
        logits.append(target.logits(target.normalise(hidden)))
    assert close(logits[0], logits[1], bound=ROUNDING)
