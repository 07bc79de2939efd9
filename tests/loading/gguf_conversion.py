"""Models of transformers as llama.cpp's converter writes them, for tests of reading them back.

Names and changes are the converter's, written out from its documentation: norms stored as 1 + w,
A_log as -exp, convolutions without their middle axis, value heads of Qwen 3.5 in turns.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.foreign import write_gguf

Arrays = dict[str, NDArray[np.float32]]
KEYS, VALUES, KEY, VALUE = 2, 6, 8, 8  # gated delta: heads of keys and values, and their sizes

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 64,
    "max_position_embeddings": 512,
}
DELTA = {
    "linear_num_key_heads": KEYS,
    "linear_num_value_heads": VALUES,
    "linear_key_head_dim": KEY,
    "linear_value_head_dim": VALUE,
    "linear_conv_kernel_dim": 4,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 24,
}
ROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}


@dataclass(frozen=True, slots=True)
class Case:
    """One architecture. config: of the class in transformers; metadata: of the file."""

    arch: str
    title: str
    config: dict[str, Any]
    metadata: dict[str, Any]


_COMMON = {
    "context_length": 512,
    "embedding_length": 32,
    "feed_forward_length": 64,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 16,
    "attention.value_length": 16,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 1e4,
    "vocab_size": 64,
}
# llama.cpp reads no file without a vocabulary.
TOKENIZER = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "qwen2",
    "tokenizer.ggml.tokens": [f"{i:02}" for i in range(64)],
    "tokenizer.ggml.token_type": [1] * 64,
    "tokenizer.ggml.merges": ["0 0"],
    "tokenizer.ggml.eos_token_id": 0,
}
_SSM = {
    "full_attention_interval": 2,
    "rope.dimension_count": 8,
    "rope.dimension_sections": [2, 1, 1, 0],
    "ssm.conv_kernel": 4,
    "ssm.state_size": KEY,
    "ssm.group_count": KEYS,
    "ssm.time_step_rank": VALUES,
    "ssm.inner_size": VALUES * VALUE,
}
_MOE = {
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_feed_forward_length": 16,
    "expert_shared_feed_forward_length": 24,
}
_LAYERS = {"num_hidden_layers": 4, "layer_types": ["linear_attention", "full_attention"] * 2}
CASES = {
    "gemma3": Case(
        "gemma3",
        "Gemma3",
        {
            # The square root of the width scales embeddings, in mlx-lm rounded to bfloat16.
            "hidden_size": 64,
            "num_hidden_layers": 4,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "query_pre_attn_scalar": 16,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1e4},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
            },
        },
        {
            "block_count": 4,
            "embedding_length": 64,
            "attention.sliding_window": 8,
            "attention.sliding_window_pattern": 2,
            "rope.freq_base_swa": 1e3,
        },
    ),
    "lfm2": Case(
        "lfm2",
        "Lfm2",
        {
            "num_hidden_layers": 3,
            "layer_types": ["conv", "full_attention", "conv"],
            "num_attention_heads": 2,
            "conv_L_cache": 3,
            "block_auto_adjust_ff_dim": False,
            "norm_eps": 1e-6,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        },
        {
            "block_count": 3,
            "attention.head_count": 2,
            "attention.head_count_kv": [0, 2, 0],
            "shortconv.l_cache": 3,
        },
    ),
    "qwen35": Case(
        "qwen35",
        "Qwen3_5",
        _LAYERS | DELTA | {"rope_parameters": ROPE},
        {"block_count": 4} | _SSM,
    ),
    "qwen35moe": Case(
        "qwen35moe",
        "Qwen3_5Moe",
        _LAYERS | DELTA | EXPERTS | {"rope_parameters": ROPE},
        {"block_count": 4} | _SSM | _MOE,
    ),
    "qwen3next": Case(
        "qwen3next",
        "Qwen3Next",
        _LAYERS | DELTA | EXPERTS | {"rope_parameters": ROPE},
        {"block_count": 4} | _SSM | _MOE,
    ),
}

_BLOCK = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.out_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "operator_norm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "ffn_norm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w3": "ffn_up",
    "feed_forward.w2": "ffn_down",
    "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj",
    "conv.conv": "shortconv.conv",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}
_ENDS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "model.embedding_norm.weight": "token_embd_norm.weight",
    "lm_head.weight": "output.weight",
}


def stored_weights(arch: str, weights: Arrays, *, tiled: bool = True) -> Arrays:
    """Tensors under the file's names. tiled: value heads in turns, as Qwen 3.5's files are."""
    stored: Arrays = {}
    for name, array in weights.items():
        if name in _ENDS:
            stored[_ENDS[name]] = _norm(arch, name, array)
            continue
        _, _, layer, rest = name.split(".", 3)
        for new, value in _block_tensors(arch, rest, array, tiled).items():
            stored[f"blk.{layer}.{new}"] = np.ascontiguousarray(value)
    return stored


def _block_tensors(arch: str, rest: str, array: NDArray[np.float32], tiled: bool) -> Arrays:
    if rest == "linear_attn.A_log":
        return {"ssm_a": _value_rows(arch, -np.exp(array), tiled)}
    if rest == "linear_attn.dt_bias":
        return {"ssm_dt.bias": _value_rows(arch, array, tiled)}
    if rest == "mlp.experts.gate_up_proj":
        gate, up = np.split(array, 2, axis=1)
        return {"ffn_gate_exps.weight": gate, "ffn_up_exps.weight": up}
    if rest == "mlp.experts.down_proj":
        return {"ffn_down_exps.weight": array}
    if rest == "linear_attn.in_proj_qkvz.weight":
        return _apart(array)
    base, kind = rest.rsplit(".", 1)
    new, value = _BLOCK[base], _norm(arch, rest, array)
    if new in ("ssm_conv1d", "shortconv.conv"):
        value = value[:, 0]
    if new in ("attn_gate", "ssm_alpha", "ssm_beta"):
        value = _value_rows(arch, value, tiled)
    if new in ("attn_qkv", "ssm_conv1d"):
        keys = 2 * KEYS * KEY
        value = np.concatenate([value[:keys], _value_rows(arch, value[keys:], tiled)])
    if new == "ssm_out":
        value = _value_rows(arch, value.T, tiled).T
    return {f"{new}.{kind}": value[0] if new == "ffn_gate_inp_shexp" else value}


def _norm(arch: str, name: str, array: NDArray[np.float32]) -> NDArray[np.float32]:
    centred = arch != "lfm2" and name.endswith("norm.weight") and "linear_attn" not in name
    return array + 1 if centred else array


def _value_rows(arch: str, array: NDArray[np.float32], tiled: bool) -> NDArray[np.float32]:
    """Value heads from groups (k, then its heads) into turns over the key heads."""
    if arch == "qwen3next" or not tiled:
        return array
    groups = array.reshape(KEYS, VALUES // KEYS, -1, *array.shape[1:])
    return groups.swapaxes(0, 1).reshape(array.shape)


def _apart(array: NDArray[np.float32]) -> Arrays:
    """Qwen3-Next's q, k, v and gate of each key head, put together by kind."""
    group = VALUES // KEYS * VALUE
    heads = array.reshape(KEYS, 2 * KEY + 2 * group, -1)
    q, k, v, gate = np.split(heads, [KEY, 2 * KEY, 2 * KEY + group], axis=1)
    rows = [part.reshape(-1, array.shape[-1]) for part in (q, k, v)]
    qkv, gates = np.concatenate(rows), gate.reshape(-1, array.shape[-1])
    return {"attn_qkv.weight": qkv, "attn_gate.weight": gates}


def write_case(
    path: Path, case: Case, stored: Arrays, kind_of: Any = lambda name: "F32", **more: Any
) -> Path:
    """A file of one architecture. more: metadata in place of the case's own."""
    metadata = _COMMON | case.metadata | {key.replace("__", "."): v for key, v in more.items()}
    fields = {f"{case.arch}.{key}": value for key, value in metadata.items()}
    return write_gguf(path, stored, fields | TOKENIZER, kind_of, case.arch)
