"""Models of mlx-lm's with random weights that keep more than every token's keys and values."""

from functools import cache
from typing import Any

import mlx.core as mx

VOCAB_SIZE = 64
WINDOW = 8
FULL, SLIDING = "full_attention", "sliding_attention"
ALTERNATING = {"layer_types": [SLIDING, FULL] * 2}
ROPE = {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in (FULL, SLIDING)}

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "rope_theta": 1e4,
    "rope_scaling": None,
    "rms_norm_eps": 1e-6,
    "layer_norm_eps": 1e-5,
    "norm_eps": 1e-5,
    "attention_bias": False,
    "sliding_window": WINDOW,
    "sliding_window_pattern": 2,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "decoder_sparse_step": 1,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "mlp_only_layers": [],
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "routed_scaling_factor": 1.0,
}
LATENT: dict[str, Any] = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
}
DELTA: dict[str, Any] = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "partial_rotary_factor": 0.5,
}
KDA: dict[str, Any] = {
    "linear_attn_config": {
        "kda_layers": [1, 2, 3],
        "full_attn_layers": [4],
        "num_heads": 4,
        "head_dim": 8,
        "short_conv_kernel_size": 4,
    },
    "moe_router_activation_func": "sigmoid",
    "num_experts_per_token": 2,
    "num_expert_group": 1,
    "moe_renormalize": True,
    "model_max_length": 512,
}
MAMBA: dict[str, Any] = {
    "state_size": 4,
    "conv_kernel": 4,
    "use_bias": False,
    "use_conv_bias": True,
    "time_step_rank": 2,
    "intermediate_size": 64,
}
MAMBA_2: dict[str, Any] = {
    "mamba_d_ssm": 32,
    "mamba_n_heads": 4,
    "mamba_num_heads": 4,
    "mamba_d_head": 8,
    "mamba_head_dim": 8,
    "mamba_d_state": 8,
    "ssm_state_size": 8,
    "mamba_n_groups": 1,
    "n_groups": 1,
    "mamba_d_conv": 4,
    "conv_kernel": 4,
    "mamba_expand": 1,
    "mamba_chunk_size": 8,
    "chunk_size": 8,
    "mamba_conv_bias": True,
    "use_conv_bias": True,
    "mamba_proj_bias": False,
    "mlp_bias": False,
    "time_step_limit": (0.0, float("inf")),
    "layer_norm_epsilon": 1e-5,
}
SHORT_CONV: dict[str, Any] = {"conv_bias": False, "conv_L_cache": 3, "full_attn_idxs": [1, 3]}

RECURRENT: dict[str, dict[str, Any]] = {
    "baichuan_m1": {
        "sliding_window_layers": [0, 2],
        "conv_window": 2,
        "num_swa_attention_heads": 4,
        "num_swa_key_value_heads": 2,
    },
    "bailing_moe_linear": EXPERTS
    | {"layer_group_size": 2, "group_norm_size": 1, "num_key_value_heads": 4, "use_bias": False},
    "falcon_h1": MAMBA_2
    | {"num_hidden_layers": 2, "mamba_rms_norm": False, "mamba_norm_before_gate": True},
    "granitemoehybrid": MAMBA_2
    | EXPERTS
    | {
        "layer_types": ["mamba", "attention"] * 2,
        "embedding_multiplier": 1.0,
        "attention_multiplier": 0.3,
        "logits_scaling": 1.0,
        "residual_multiplier": 1.0,
        "position_embedding_type": "rope",
        "shared_intermediate_size": 16,
    },
    "jamba": EXPERTS
    | {
        "attn_layer_offset": 1,
        "attn_layer_period": 2,
        "expert_layer_offset": 1,
        "expert_layer_period": 2,
        "mamba_d_conv": 4,
        "mamba_d_state": 4,
        "mamba_expand": 2,
        "mamba_dt_rank": 2,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
    },
    "kimi_linear": EXPERTS | LATENT | KDA,
    "lfm2": SHORT_CONV
    | {
        "block_dim": 32,
        "block_ff_dim": 48,
        "block_multiple_of": 8,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
    },
    "lfm2_moe": EXPERTS | SHORT_CONV | {"num_dense_layers": 1, "use_expert_bias": True},
    "mamba": MAMBA,
    "mamba2": MAMBA_2
    | {"num_heads": 8, "state_size": 8, "intermediate_size": 64, "time_step_rank": 2}
    | {"use_bias": False},
    "nemotron_h": MAMBA_2
    | {"hybrid_override_pattern": "M*M-", "mlp_hidden_act": "relu2", "use_bias": False},
    "olmo_hybrid": DELTA
    | {"linear_num_key_heads": 4, "linear_allow_neg_eigval": True}
    | {"layer_types": [*["linear_attention"] * 3, FULL]},
    "plamo2": MAMBA_2
    | {"mamba_step": 2, "mamba_enabled": True, "hidden_size_per_head": 8}
    | {"mamba_hidden_size": 32},
    "qwen3_5": DELTA | {"wrapped": True},
    "qwen3_5_moe": DELTA | EXPERTS | {"wrapped": True},
    "qwen3_next": DELTA | EXPERTS,
    "recurrent_gemma": {
        "num_hidden_layers": 3,
        "attention_window_size": WINDOW,
        "block_types": ["recurrent", "recurrent", "attention"],
        "conv1d_width": 4,
        "embeddings_scale_by_sqrt_dim": True,
        "lru_width": 32,
        "logits_soft_cap": 30.0,
    },
    "rwkv7": {f"{kind}_low_rank_dim": 8 for kind in ("a", "v", "gate", "decay")},
}
WINDOWED: dict[str, dict[str, Any]] = {
    "afmoe": EXPERTS | ALTERNATING,
    "cohere2": {"logit_scale": 0.1},
    "exaone4": {"sliding_window_pattern": "LLG"},
    "exaone_moe": EXPERTS | ALTERNATING | {"is_moe_layer": [False, True] * 2},
    "gemma3_text": {"query_pre_attn_scalar": 8},
    "gemma3n": ALTERNATING
    | {
        "wrapped": True,
        "num_kv_shared_layers": 2,
        "vocab_size_per_layer_input": VOCAB_SIZE,
        "hidden_size_per_layer_input": 8,
        "rope_local_base_freq": 1e4,
        "final_logit_softcapping": 30.0,
        "altup_num_inputs": 2,
        "altup_coef_clip": 10.0,
        "altup_correct_scale": True,
        "altup_active_idx": 0,
        "laurel_rank": 8,
        "activation_sparsity_pattern": [0.0] * 4,
        "intermediate_size": [48] * 4,
    },
    "gemma4_text": ALTERNATING
    | {
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": VOCAB_SIZE,
        "global_head_dim": 8,
        "enable_moe_block": False,
    },
    "gpt_oss": EXPERTS | ALTERNATING,
    "iquestloopcoder": {"loop_num": 2, "loop_window_size": WINDOW},
    "llama": ALTERNATING,
    "mellum": EXPERTS | ALTERNATING | {"rope_parameters": ROPE},
    "mimo_v2_flash": EXPERTS
    | {
        "hybrid_layer_pattern": [0, 1, 1, 0],
        "moe_layer_freq": [0, 1, 1, 1],
        "sliding_window_size": WINDOW,
        "v_head_dim": 8,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2,
        "swa_head_dim": 8,
        "swa_v_head_dim": 8,
        "swa_rope_theta": 1e4,
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
        "layernorm_epsilon": 1e-6,
        "attention_value_scale": 0.7,
        "partial_rotary_factor": 0.5,
    },
    "olmo3": ALTERNATING,
    "spark2_5": EXPERTS | ALTERNATING | {"rope_parameters": ROPE},
    "step3p5": EXPERTS
    | {
        "layer_types": [FULL, SLIDING] * 2,
        "num_attention_groups": 2,
        "attention_other_setting": {
            "attention_type": SLIDING,
            "num_attention_heads": 4,
            "num_attention_groups": 2,
            "head_dim": 8,
        },
    },
}
OTHERS: dict[str, dict[str, Any]] = {
    "afm7": {
        "hidden_dim": 32,
        "num_layers": 4,
        "num_heads": 4,
        "num_kv_reuse_layers": 2,
        "num_kv_heads": 2,
        "hidden_dim_scale_factor": 1.5,
    },
    "llama4": EXPERTS
    | {
        "wrapped": True,
        "attention_chunk_size": WINDOW,
        "intermediate_size_mlp": 48,
        "interleave_moe_layer_step": 2,
        "use_qk_norm": True,
        "num_experts_per_tok": 1,
    },
    "plamo3": {"window_size": WINDOW},
}


def config_of(model_type: str) -> dict[str, Any]:
    """The config.json of a tiny model."""
    fields = SIZES | (RECURRENT | WINDOWED | OTHERS)[model_type] | {"model_type": model_type}
    if fields.pop("wrapped", False):
        return {"model_type": model_type, "text_config": fields} | {"vocab_size": VOCAB_SIZE}
    return fields


@cache
def tiny_model(model_type: str) -> Any:
    """mlx_lm's Model of this type with random weights, one for all tests."""
    return build(model_type)


def build(model_type: str, **fields: Any) -> Any:
    """mlx_lm's Model of this type with random weights. fields: of the config, in place of ours."""
    from mlx_lm.utils import _get_classes

    config = config_of(model_type) | fields
    model_class, args_class = _get_classes(config)
    mx.random.seed(1)
    model = model_class(args_class.from_dict(config))
    model.eval()
    mx.eval(model.parameters())
    return model
