"""mlx-lm's llama-type models as trunks of our own: the same logits, or not taken for one."""

from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from mtplx.models.llama import LlamaTarget
from mtplx.models.llama_like import llama_dims_of, own_trunk
from mtplx.models.mlx_lm_target import MlxLmTarget, mlx_lm_target
from mtplx.models.mlx_lm_twin import mlx_lm_twin
from tests.tiny import DIMS, close, random_prompt, tiny_target

pytestmark = pytest.mark.slow  # importing mlx_lm takes seconds

PROMPT = mx.array(random_prompt(40))
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 64,
    "max_position_embeddings": 512,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
}


def model(**changes: object) -> MlxLmTarget:
    """One of mlx-lm's models with random weights."""
    from mtplx.models.mlx_lm_model import dense_model

    mx.random.seed(5)
    made = dense_model(CONFIG | changes)
    mx.eval(made.parameters())
    return mlx_lm_target(made, CONFIG | changes, "a model")


def logits_of(target: LlamaTarget | MlxLmTarget) -> mx.array:
    return target.logits(target.normalise(target.forward(PROMPT, target.make_cache())))


LIKE: dict[str, dict[str, object]] = {
    "llama": {},
    "tied": {"tie_word_embeddings": True},
    "mistral": {"model_type": "mistral"},
    "wide heads": {"head_dim": 32},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3", "head_dim": 32},
    "stretched": {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "Llama 3.1": {"rope_scaling": LLAMA3},
}


@pytest.mark.parametrize("kind", LIKE)
def test_the_copys_logits_are_the_models(kind: str) -> None:
    """Layout, biases, norms and wavelengths are taken over."""
    target = model(**LIKE[kind])
    own = own_trunk(target)
    assert own is not None
    assert close(logits_of(own), logits_of(target))


UNLIKE: dict[str, dict[str, object]] = {
    "a window": {
        "layer_types": ["full_attention", "sliding_attention"],
        "sliding_window": 8,
    },
    "biases everywhere": {"attention_bias": True},
    "biases of the MLP": {"mlp_bias": True},
    "pairs that rotate": {"rope_traditional": True},
    "YaRN": {"rope_scaling": {"type": "yarn", "factor": 4.0}},
    "OLMo 2": {"model_type": "olmo2"},
}


@pytest.mark.parametrize("kind", UNLIKE)
def test_what_computes_something_else_is_not_taken_for_one(kind: str) -> None:
    """A head would be trained on another model than the one it drafts for."""
    target = model(**UNLIKE[kind])
    assert llama_dims_of(target) is None
    assert own_trunk(target) is None


@pytest.mark.parametrize("bits", [4, 8])
def test_packed_weights_are_expanded(bits: int) -> None:
    import mlx.nn as nn

    target = model()
    nn.quantize(target.model, group_size=32, bits=bits)
    target.model.model.norm = target.final_norm
    packed = mlx_lm_target(target.model, CONFIG, "a packed model")
    own = own_trunk(packed)
    assert own is not None
    assert close(logits_of(own), logits_of(packed))


def test_a_trunk_of_ours_is_itself() -> None:
    target = tiny_target()
    assert own_trunk(target) is target
    assert llama_dims_of(target) is DIMS


def test_a_twin_and_back_is_where_it_began() -> None:
    """Sizes included; the context is not the model's to know."""
    target = tiny_target()
    lifted = mlx_lm_target(mlx_lm_twin(target), {}, "the twin")
    dims = llama_dims_of(lifted)
    assert dims is not None
    assert replace(dims, context_length=DIMS.context_length) == DIMS
    own = own_trunk(lifted)
    assert own is not None
    assert close(logits_of(own), logits_of(target))
