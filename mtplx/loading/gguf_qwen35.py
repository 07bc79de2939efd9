"""Qwen 3.5's and Qwen3-Next's GGUF files in mlx-lm's words.

llama.cpp stores the value heads of Qwen 3.5's gated delta layers in turns over the key heads, and
those of Qwen3-Next group by group, as Hugging Face has both.
"""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import numpy as np

from mtplx.errors import UnsupportedTensorError
from mtplx.loading.gguf_layouts import (
    ATTENTION,
    ENDS,
    MLP,
    Fields,
    Layout,
    Metadata,
    Transform,
    tiled_to_grouped,
)

NORMS = {
    "attn_norm.weight": "input_layernorm.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
}
DELTA = {
    "attn_qkv.weight": "linear_attn.in_proj_qkv.weight",
    "attn_gate.weight": "linear_attn.in_proj_z.weight",
    "ssm_beta.weight": "linear_attn.in_proj_b.weight",
    "ssm_alpha.weight": "linear_attn.in_proj_a.weight",
    "ssm_a": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_conv1d.weight": "linear_attn.conv1d.weight",
    "ssm_norm.weight": "linear_attn.norm.weight",
    "ssm_out.weight": "linear_attn.out_proj.weight",
}
EXPERTS = {
    "ffn_gate_inp.weight": "mlp.gate.weight",
    "ffn_gate_exps.weight": "mlp.switch_mlp.gate_proj.weight",
    "ffn_up_exps.weight": "mlp.switch_mlp.up_proj.weight",
    "ffn_down_exps.weight": "mlp.switch_mlp.down_proj.weight",
    "ffn_gate_shexp.weight": "mlp.shared_expert.gate_proj.weight",
    "ffn_up_shexp.weight": "mlp.shared_expert.up_proj.weight",
    "ffn_down_shexp.weight": "mlp.shared_expert.down_proj.weight",
    "ffn_gate_inp_shexp.weight": "mlp.shared_expert_gate.weight",
}
HEAD = {  # the head's own tensors, behind `blk.{N + i}.`
    "nextn.eh_proj.weight": "mtp.fc.weight",
    "nextn.enorm.weight": "mtp.pre_fc_norm_embedding.weight",
    "nextn.hnorm.weight": "mtp.pre_fc_norm_hidden.weight",
    "nextn.shared_head_norm.weight": "mtp.norm.weight",
}
HEAD_COPIES = ("nextn.embed_tokens.weight", "nextn.shared_head_head.weight")  # the trunk's


def qwen35(metadata: Metadata) -> Layout:
    """Qwen 3.5, 3.6 and 3.8, dense or of experts."""
    fields = Fields(metadata)
    sizes, num_layers = _sizes(fields)
    moe = _experts(fields) if fields.arch == "qwen35moe" else {}
    text = sizes | moe | {"rope_parameters": _rope(fields, sizes)}
    kind = "qwen3_5_moe" if moe else "qwen3_5"
    config = {"model_type": kind, "text_config": text | {"model_type": kind}}
    names = ATTENTION | NORMS | DELTA | (EXPERTS if moe else MLP)
    return Layout(config, num_layers, names, ENDS, TRANSFORMS, *_orders(sizes))


def _sizes(fields: Fields) -> tuple[dict[str, Any], int]:
    num_layers = int(fields.number("block_count")) - int(fields.get("nextn_predict_layers", 0))
    interval = int(fields.number("full_attention_interval", 4))
    recurrent = fields.get("attention.recurrent_layers")
    if isinstance(recurrent, list):
        interval = _interval(recurrent, num_layers)
    num_values = int(fields.number("ssm.time_step_rank"))
    return fields.sizes() | {
        "num_hidden_layers": num_layers,
        "full_attention_interval": interval,
        "linear_num_value_heads": num_values,
        "linear_num_key_heads": int(fields.number("ssm.group_count")),
        "linear_key_head_dim": int(fields.number("ssm.state_size")),
        "linear_value_head_dim": int(fields.number("ssm.inner_size")) // num_values,
        "linear_conv_kernel_dim": int(fields.number("ssm.conv_kernel")),
    }, num_layers


def _interval(recurrent: list[object], num_layers: int) -> int:
    """Every how many layers one is of attention."""
    kinds = [bool(each) for each in recurrent[:num_layers]]
    interval = kinds.index(False) + 1 if False in kinds else num_layers + 1
    if kinds != [(i + 1) % interval != 0 for i in range(num_layers)]:
        raise UnsupportedTensorError(
            "The layers of attention do not follow each other regularly: "
            f"attention.recurrent_layers is {recurrent}."
        )
    return interval


def _rope(fields: Fields, sizes: Mapping[str, Any]) -> dict[str, Any]:
    turned = fields.number("rope.dimension_count", sizes["head_dim"])
    return {
        "type": "default",
        "rope_theta": fields.number("rope.freq_base", 1e7),
        "partial_rotary_factor": turned / sizes["head_dim"],
    }


def _experts(fields: Fields) -> dict[str, Any]:
    return {
        "num_experts": int(fields.number("expert_count")),
        "num_experts_per_tok": int(fields.number("expert_used_count")),
        "moe_intermediate_size": int(fields.number("expert_feed_forward_length")),
        "shared_expert_intermediate_size": int(fields.number("expert_shared_feed_forward_length")),
        "norm_topk_prob": True,
    }


def _orders(sizes: Mapping[str, Any]) -> tuple[dict[str, mx.array], dict[str, mx.array]]:
    """Which stored row each one is, with value heads back in groups; and of ssm_out's columns."""
    num_keys, num_values = sizes["linear_num_key_heads"], sizes["linear_num_value_heads"]
    heads = tiled_to_grouped(num_keys, num_values)
    width = sizes["linear_value_head_dim"]
    wide = (heads[:, None] * width + np.arange(width)).reshape(-1)
    before = np.arange(2 * num_keys * sizes["linear_key_head_dim"])  # rows of q and k
    behind_keys = mx.array(np.concatenate([before, len(before) + wide]))
    rows = {
        "attn_qkv.weight": behind_keys,
        "ssm_conv1d.weight": behind_keys,
        "attn_gate.weight": mx.array(wide),
        **dict.fromkeys(("ssm_beta.weight", "ssm_alpha.weight"), mx.array(heads)),
        **dict.fromkeys(("ssm_a", "ssm_dt.bias"), mx.array(heads)),
    }
    return rows, {"ssm_out.weight": mx.array(np.argsort(wide))}


TRANSFORMS: dict[str, Transform] = {
    "ssm_a": lambda array: mx.log(-array),
    "ssm_conv1d.weight": lambda array: array[..., None],
    # A vector in the file, a matrix of one row in the model.
    "ffn_gate_inp_shexp.weight": lambda array: array.reshape(1, -1),
}


def qwen3next(metadata: Metadata) -> Layout:
    """Qwen3-Next. mlx-lm has q, k, v and the gate of a key head together, as Hugging Face has."""
    fields = Fields(metadata)
    sizes, num_layers = _sizes(fields)
    rope = _rope(fields, sizes)
    config = (
        sizes
        | _experts(fields)
        | {
            "model_type": "qwen3_next",
            "rope_theta": rope["rope_theta"],
            "partial_rotary_factor": rope["partial_rotary_factor"],
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    )
    separate = ("ssm_beta.weight", "ssm_alpha.weight")
    names = {name: to for name, to in DELTA.items() if name not in separate}
    names["ssm_ba.weight"] = "linear_attn.in_proj_ba.weight"
    return Layout(
        config,
        num_layers,
        ATTENTION | NORMS | EXPERTS | names,
        ENDS,
        TRANSFORMS,
        shared=frozenset(("attn_qkv.weight", "attn_gate.weight")),
    )


def joined_projections(weights: dict[str, mx.array], config: Mapping[str, Any]) -> None:
    """in_proj_qkv and in_proj_z of every layer as Qwen3-Next's in_proj_qkvz, in place.

    weights: of packed ones the numbers of their rows, which are joined alike.
    """
    num_keys, key = config["linear_num_key_heads"], config["linear_key_head_dim"]
    value = config["linear_num_value_heads"] // num_keys * config["linear_value_head_dim"]
    for name in [name for name in weights if name.endswith("in_proj_qkv.weight")]:
        gate = weights.pop(name.replace("in_proj_qkv", "in_proj_z"))
        rows = mx.split(weights.pop(name), [num_keys * key, 2 * num_keys * key])
        parts = [
            part.reshape(num_keys, size, -1)
            for part, size in zip([*rows, gate], (key, key, value, value), strict=True)
        ]
        whole = mx.concatenate(parts, axis=1).reshape(-1, gate.shape[-1])
        weights[name.replace("in_proj_qkv", "in_proj_qkvz")] = whole
