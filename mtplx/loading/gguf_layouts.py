"""What llama.cpp's files of some architectures are in mlx-lm's words: configuration and names.

Sources: the converter and model code of llama.cpp, as far as it says what is stored; the module
trees of mlx-lm. Norms that are stored as 1 + w stay so where mlx-lm's models use them so.
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np

from mtplx.errors import CheckpointError, UnsupportedTensorError

Metadata = Mapping[str, object]
Transform = Callable[[mx.array], mx.array]


@dataclass(frozen=True, slots=True)
class Layout:
    """One file's architecture. config: as mlx-lm reads it.

    num_layers: of the trunk; what lies behind is a head's. names: what follows `blk.{i}.` -> what
    follows `model.layers.{i}.`. ends: tensors outside of the layers. transforms: by the part of the
    file's name that `names` has. row_orders: likewise, those that only put rows in another order,
    which blocks allow as well. column_orders: likewise, which of the model's columns stands where
    the file has its own; blocks stay as they are, and the input is put in their order. shared:
    likewise, matrices whose rows the model has together with another's.
    """

    config: dict[str, Any]
    num_layers: int
    names: Mapping[str, str]
    ends: Mapping[str, str]
    transforms: Mapping[str, Transform]
    row_orders: Mapping[str, mx.array] = field(default_factory=dict)
    column_orders: Mapping[str, mx.array] = field(default_factory=dict)
    shared: Set[str] = frozenset()


class Fields:
    """The metadata of one architecture. Raises CheckpointError for a key that is missing."""

    def __init__(self, metadata: Metadata) -> None:
        self.metadata, self.arch = metadata, str(metadata.get("general.architecture"))

    def get(self, key: str, default: Any = None) -> Any:
        """A value as it is, zero and empty ones as if they were not there."""
        return self.metadata.get(f"{self.arch}.{key}") or default

    def number(self, key: str, default: float | None = None) -> Any:
        value = self.get(key, default)
        if isinstance(value, list):  # one for each layer
            used = {each for each in value if each}
            value = used.pop() if len(used) == 1 else value
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 2**31:
            raise CheckpointError(
                f"The file's metadata has {self.arch}.{key} = {value!r}; one positive number is "
                "needed. Fetch it again."
            )
        return value

    def refuse(self, *keys: str) -> None:
        for key in keys:
            if self.get(key):
                raise UnsupportedTensorError(
                    f"{self.arch}.{key} is set, which is not supported yet."
                )

    def vocab_size(self) -> int:
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        return int(self.number("vocab_size", len(tokens) if isinstance(tokens, list) else None))

    def sizes(self) -> dict[str, Any]:
        """What every configuration has."""
        heads, width = self.number("attention.head_count"), self.number("embedding_length")
        return {
            "hidden_size": width,
            "intermediate_size": self.get("feed_forward_length", 0),
            "num_attention_heads": heads,
            "num_key_value_heads": self.number("attention.head_count_kv", heads),
            "head_dim": self.number("attention.key_length", width / heads),
            "rms_norm_eps": self.number("attention.layer_norm_rms_epsilon"),
            "vocab_size": self.vocab_size(),
            "max_position_embeddings": self.number("context_length"),
        }


ATTENTION = {
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
}
MLP = {
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
ENDS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def gemma3(metadata: Metadata) -> Layout:
    """Gemma 3 as `gemma3_text`. Its norms are stored as 1 + w, and mlx-lm adds the one itself."""
    fields = Fields(metadata)
    fields.refuse("final_logit_softcapping")
    sizes, num_layers = fields.sizes(), int(fields.number("block_count"))
    scale = fields.get("attention.scale")
    # The one with 62 layers scales by what its heads would have had of the hidden state.
    wide = num_layers == 62
    size = sizes["hidden_size"] / sizes["num_attention_heads"] if wide else sizes["head_dim"]
    factor = fields.get("rope.scaling.factor", 1.0)
    config = sizes | {
        "model_type": "gemma3_text",
        "num_hidden_layers": num_layers,
        "query_pre_attn_scalar": scale**-2 if scale else size,
        "sliding_window": int(fields.number("attention.sliding_window")),
        "sliding_window_pattern": _window_pattern(fields, num_layers),
        "rope_theta": fields.number("rope.freq_base", 1e6),
        "rope_local_base_freq": fields.number("rope.freq_base_swa", 1e4),
        "rope_scaling": {"rope_type": "linear", "factor": factor} if factor != 1.0 else None,
    }
    norms = {
        "attn_norm.weight": "input_layernorm.weight",
        "post_attention_norm.weight": "post_attention_layernorm.weight",
        "ffn_norm.weight": "pre_feedforward_layernorm.weight",
        "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
    }
    shifted = (*norms, "attn_q_norm.weight", "attn_k_norm.weight", "output_norm.weight")
    transforms = dict.fromkeys(shifted, _minus_one)
    return Layout(config, num_layers, ATTENTION | MLP | norms, ENDS, transforms)


def _window_pattern(fields: Fields, num_layers: int) -> int:
    """Every how many layers one looks back over everything."""
    stated = fields.get("attention.sliding_window_pattern", 6)
    if not isinstance(stated, list):
        return int(stated)
    pattern = next((i for i, windowed in enumerate(stated) if not windowed), num_layers) + 1
    if [bool(windowed) for windowed in stated] != [
        i % pattern != pattern - 1 for i in range(num_layers)
    ]:
        raise UnsupportedTensorError(
            "The layers that look back over everything do not follow each other regularly: "
            f"attention.sliding_window_pattern is {stated}."
        )
    return pattern


def lfm2(metadata: Metadata) -> Layout:
    """LFM2: short convolutions between layers of attention; the final norm is `token_embd_norm`."""
    fields = Fields(metadata)
    fields.refuse("expert_count")
    sizes, num_layers = fields.sizes(), int(fields.number("block_count"))
    by_layer = fields.get("attention.head_count_kv")
    if not isinstance(by_layer, list) or len(by_layer) != num_layers:
        raise CheckpointError(
            "lfm2.attention.head_count_kv must say of each layer how many key heads it has, none "
            "for a convolution. Fetch the file again."
        )
    config = sizes | {
        "model_type": "lfm2",
        "num_hidden_layers": num_layers,
        "norm_eps": sizes["rms_norm_eps"],
        "conv_bias": False,
        "conv_L_cache": int(fields.number("shortconv.l_cache")),
        "block_dim": sizes["hidden_size"],
        "block_ff_dim": sizes["intermediate_size"],
        "block_multiple_of": 256,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "rope_theta": fields.number("rope.freq_base", 1e6),
        "full_attn_idxs": [i for i, heads in enumerate(by_layer) if heads],
    }
    names = {
        **ATTENTION,
        "attn_output.weight": "self_attn.out_proj.weight",
        "attn_q_norm.weight": "self_attn.q_layernorm.weight",
        "attn_k_norm.weight": "self_attn.k_layernorm.weight",
        "attn_norm.weight": "operator_norm.weight",
        "ffn_norm.weight": "ffn_norm.weight",
        "ffn_gate.weight": "feed_forward.w1.weight",
        "ffn_up.weight": "feed_forward.w3.weight",
        "ffn_down.weight": "feed_forward.w2.weight",
        "shortconv.in_proj.weight": "conv.in_proj.weight",
        "shortconv.out_proj.weight": "conv.out_proj.weight",
        "shortconv.conv.weight": "conv.conv.weight",
    }
    ends = {
        "token_embd.weight": "model.embed_tokens.weight",
        "token_embd_norm.weight": "model.embedding_norm.weight",
    }
    return Layout(config, num_layers, names, ends, {"shortconv.conv.weight": _taps_inside})


def _minus_one(array: mx.array) -> mx.array:
    return array - 1


def _taps_inside(array: mx.array) -> mx.array:
    """A convolution of each channel by itself: [C, taps] -> [C, taps, 1]."""
    return array[..., None]


def tiled_to_grouped(num_key_heads: int, num_value_heads: int) -> np.ndarray[Any, Any]:
    """Which stored value head each one is, where a file has them in turns over the key heads.

    A file has value head h with key head h % num_key_heads, mlx-lm with h // (heads of a group).
    """
    group = num_value_heads // num_key_heads
    heads = np.arange(num_value_heads)
    return (heads % group) * num_key_heads + heads // group
