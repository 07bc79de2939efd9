"""Which of mlx-lm's models are llama-type trunks, for heads that were trained for one.

A trained head only asks a trunk for its sizes, its embedding and its output layer, and drafts
with the model as mlx-lm runs it. Training computes gradients of trunk and head, so it copies the
weights into a trunk of our own.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mtplx.models.llama import LlamaBlock, LlamaDims, LlamaTarget
from mtplx.models.matrix import DenseMatrix
from mtplx.models.mlx_lm_target import MlxLmTarget
from mtplx.models.module_matrix import matrix_of
from mtplx.speculation import Target

KINDS = ("llama", "qwen2", "qwen3")  # modules of mlx_lm.models; Mistral is llama to it


def llama_dims_of(target: Target) -> LlamaDims | None:
    """The sizes of a llama-type trunk, of ours or of mlx-lm's; None for any other model."""
    if isinstance(target, LlamaTarget):
        return target.dims
    if not isinstance(target, MlxLmTarget):
        return None
    package, _, kind = type(target.model).__module__.rpartition(".")
    if package != "mlx_lm.models" or kind not in KINDS:
        return None
    args, layers = target.model.args, target.model.model.layers
    rope, head_dim = layers[0].self_attn.rope, _head_dim(layers[0])
    factors = _rope_factors(rope, args.rope_theta, head_dim)
    if factors is None or not all(map(_is_plain, layers)):
        return None
    return LlamaDims(
        hidden_size=args.hidden_size,
        num_layers=len(layers),
        num_heads=args.num_attention_heads,
        num_kv_heads=args.num_key_value_heads,
        head_dim=head_dim,
        mlp_size=args.intermediate_size,
        vocab_size=target.vocab_size,
        context_length=target.context_length,
        rope_base=args.rope_theta,
        norm_eps=args.rms_norm_eps,
        rope_factors=factors,
    )


def _head_dim(layer: Any) -> int:
    num_rows, _ = matrix_of(layer.self_attn.q_proj).shape
    return num_rows // int(layer.self_attn.n_heads)


def _rope_factors(rope: Any, base: float, head_dim: int) -> tuple[float, ...] | None:
    """By how much wavelengths are stretched, none for not at all; None for another embedding."""
    if getattr(rope, "traditional", True) or rope.dims != head_dim:
        return None
    if isinstance(rope, nn.RoPE):
        return () if rope.scale == 1 else (1 / rope.scale,) * (head_dim // 2)
    if type(rope).__name__ != "Llama3RoPE":
        return None
    usual = base ** (mx.arange(0, head_dim, 2) / head_dim)
    factors: list[float] = (rope._freqs / usual).tolist()
    return tuple(factors)


def _is_plain(layer: Any) -> bool:
    """Whether it attends to all of the text and has biases at most where Qwen2 has them."""
    bare = (layer.self_attn.o_proj, layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj)
    return not getattr(layer, "use_sliding", False) and not any("bias" in part for part in bare)


def own_trunk(target: Target) -> LlamaTarget | None:
    """A llama-type trunk as one of ours, its weights expanded to float32; None for another."""
    dims = llama_dims_of(target)
    if dims is None or isinstance(target, LlamaTarget):
        return target if isinstance(target, LlamaTarget) else None
    assert isinstance(target, MlxLmTarget)
    tied = target.lm_head is target.embedding
    embedding = _dense(target.embedding.rows, dims.vocab_size)
    own = LlamaTarget(
        dims=dims,
        embedding=embedding,
        blocks=tuple(_block(layer, dims) for layer in target.model.model.layers),
        final_norm=target.final_norm.weight.astype(mx.float32),
        lm_head=embedding if tied else _dense(target.lm_head.rows, dims.vocab_size),
    )
    mx.eval(own.arrays())
    return own


def _block(layer: Any, dims: LlamaDims) -> LlamaBlock:
    attention, mlp = layer.self_attn, layer.mlp
    return LlamaBlock(
        attention_norm=layer.input_layernorm.weight.astype(mx.float32),
        qkv=_joined(attention.q_proj, attention.k_proj, attention.v_proj),
        output=_joined(attention.o_proj),
        mlp_norm=layer.post_attention_layernorm.weight.astype(mx.float32),
        gate_up=_joined(mlp.gate_proj, mlp.up_proj),
        down=_joined(mlp.down_proj),
        qkv_bias=_qkv_bias(attention),
        qk_norm=_qk_norm(attention, dims),
    )


def _qkv_bias(attention: Any) -> mx.array | None:
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    if "bias" not in parts[0]:
        return None
    return mx.concatenate([part.bias for part in parts]).astype(mx.float32)


def _qk_norm(attention: Any, dims: LlamaDims) -> mx.array | None:
    if "q_norm" not in attention:
        return None
    q, k = (norm.weight[None, None] for norm in (attention.q_norm, attention.k_norm))
    rows = [mx.repeat(q, dims.num_heads, 0), mx.repeat(k, dims.num_kv_heads, 0)]
    return mx.concatenate(rows).astype(mx.float32)


def _joined(*modules: Any) -> DenseMatrix:
    matrices = [matrix_of(module) for module in modules]
    parts = [_dense(matrix.rows, matrix.shape[0]).weight for matrix in matrices]
    return DenseMatrix(mx.concatenate(parts))


def _dense(rows: Callable[[mx.array], mx.array], num_rows: int) -> DenseMatrix:
    return DenseMatrix(rows(mx.arange(num_rows)).astype(mx.float32))
