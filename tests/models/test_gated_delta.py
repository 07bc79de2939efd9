"""The gated delta rule as products: what stepping gives, and the state after any token."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mtplx.blas import Blas
from mtplx.models import gated_delta
from mtplx.models.gated_delta import MAX_ROWS, Written, delta_block, delta_blocks
from mtplx.models.tape import Playback, Tape
from mtplx.models.undo import layer_caches
from tests.tiny import close

HEADS, KEY_HEADS, DK, DV = 4, 2, 8, 6
Arrays = list[mx.array]


def random_block(num_tokens: int, *, seed: int = 0, forgetting: float = 0.2) -> Arrays:
    """q, k, v, decay, beta of a block and the state before it."""
    rng = np.random.default_rng([seed, num_tokens])

    def normal(*shape: int) -> mx.array:
        return mx.array(rng.normal(size=shape).astype(np.float32))

    k = normal(1, num_tokens, KEY_HEADS, DK)
    return [
        normal(1, num_tokens, KEY_HEADS, DK) / DK**0.5,
        k / mx.linalg.norm(k, axis=-1, keepdims=True),
        normal(1, num_tokens, HEADS, DV),
        -forgetting * mx.abs(normal(1, num_tokens, HEADS)),
        mx.sigmoid(normal(1, num_tokens, HEADS)),
        normal(1, HEADS, DV, DK),
    ]


def stepped(block: Arrays) -> tuple[np.ndarray, list[np.ndarray]]:
    """Outputs and the state after each token, one token at a time in double precision."""
    q, k, v, decay, beta, state = (np.array(array, dtype=np.float64)[0] for array in block)
    outputs, states = [], []
    for t in range(q.shape[0]):
        rows = []
        state = state * np.exp(decay[t])[:, None, None]
        for head in range(HEADS):
            key = k[t, head * KEY_HEADS // HEADS]
            written = beta[t, head] * (v[t, head] - state[head] @ key)
            state[head] += np.outer(written, key)
            rows.append(state[head] @ q[t, head * KEY_HEADS // HEADS])
        outputs.append(np.stack(rows))
        states.append(state.copy())
    return np.stack(outputs), states


@pytest.mark.parametrize("num_tokens", [1, 2, 5, MAX_ROWS, MAX_ROWS + 1, 3 * MAX_ROWS - 2])
def test_products_give_what_steps_give(num_tokens: int) -> None:
    """Outputs and the last state, whether or not one block holds the pass."""
    block = random_block(num_tokens)
    outputs, states = stepped(block)
    y, state, written = delta_blocks(*block)
    assert np.abs(np.array(y)[0] - outputs).max() < 1e-5
    assert np.abs(np.array(state)[0] - states[-1]).max() < 1e-5
    assert (written is not None) == (num_tokens <= MAX_ROWS)


@pytest.mark.parametrize("num_kept", range(1, 7))
def test_a_state_comes_back_at_every_length(num_kept: int) -> None:
    """From the state before and what was written alone."""
    block = random_block(6)
    written = delta_block(*block)[1]
    found = written.state_after(num_kept)
    assert np.abs(np.array(found)[0] - stepped(block)[1][num_kept - 1]).max() < 1e-5


def _without_decay(written: Written) -> mx.array:
    return replace(written, decay=written.decay * 0).state_after(3)


def _one_token_more(written: Written) -> mx.array:
    return written.state_after(4)


def _from_the_state_behind(written: Written) -> mx.array:
    return replace(written, before=written.state_after(6)).state_after(3)


@pytest.mark.parametrize("wrong", [_without_decay, _one_token_more, _from_the_state_behind])
def test_a_wrong_way_back_is_noticed(wrong: Callable[[Written], mx.array]) -> None:
    """The comparison above tells these apart."""
    block = random_block(6)
    found = wrong(delta_block(*block)[1])
    assert np.abs(np.array(found)[0] - stepped(block)[1][2]).max() > 1e-2


def test_what_is_forgotten_at_once_is_no_trouble() -> None:
    """Decays far below the smallest float32 leave zeros, not infinities."""
    block = random_block(8, forgetting=300.0)
    y, state, _ = delta_blocks(*block)
    assert np.abs(np.array(y)[0] - stepped(block)[0]).max() < 1e-5
    assert bool(mx.isfinite(state).all())


@pytest.fixture(params=["qwen3_5", "qwen3_next"])
def models(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A tiny model of mlx-lm's that steps, and the same with products."""
    monkeypatch.setattr(gated_delta, "serving", lambda: Blas("mlx"))
    steps = _tiny(request.param)
    layer_caches(steps)
    monkeypatch.setattr(gated_delta, "serving", lambda: Blas("mkl"))
    products = _tiny(request.param)
    layer_caches(products)
    products.update(steps.parameters())
    return [steps, products]


def _tiny(kind: str) -> Any:
    from mlx_lm.models import qwen3_5, qwen3_next

    config = {
        "model_type": kind,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 2,
        "vocab_size": 50,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 128,
        "rope_theta": 10_000.0,
        "partial_rotary_factor": 0.25,
        "num_experts": 0,
        "num_experts_per_tok": 0,
        "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": 0,
        "moe_intermediate_size": 0,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "tie_word_embeddings": True,
    }
    module = qwen3_5 if kind == "qwen3_5" else qwen3_next
    mx.random.seed(4)
    return module.Model(module.ModelArgs.from_dict(config))


@pytest.mark.parametrize("by_mixer", [False, True])
def test_a_model_with_products_computes_and_undoes_the_same(
    models: list[Any], by_mixer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mlx-lm's own mixers, a block of which some tokens are kept, and what follows; undone by
    what was noted alone, and by playing the mixer again."""
    if by_mixer:
        monkeypatch.setattr(Tape, "recurrence", lambda *_: None)
    found = []
    for model in models:
        caches = layer_caches(model)
        first = model(mx.array([[3, 1, 4, 1, 5]]), cache=caches)
        for layer in caches:
            layer.keep(2)
        again = model(mx.array([[9, 2, 6]]), cache=caches)
        found.append([first, again, *(array for layer in caches for array in layer.state)])
    assert len(found[0]) == len(found[1])
    assert all(close(one, other, bound=1e-5) for one, other in zip(*found, strict=True))


def test_undoing_with_products_runs_no_mixer(
    models: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it read a weight."""
    model, played = models[1], []
    monkeypatch.setattr(Playback, "project", lambda *call: played.append(call))
    caches = layer_caches(model)
    model(mx.array([[3, 1, 4, 1, 5]]), cache=caches)
    for layer in caches:
        layer.keep(2)
    assert played == []
    assert sum(layer.num_replays for layer in caches) == 0
