"""Llama-type trunks: RMSNorm, rotary grouped-query attention, SwiGLU, residual stream.

Llama itself, Mistral, and the dense Qwen2 and Qwen3, which add a bias or a norm to q and k.

Written out here rather than taken from mlx-lm because the default model goes through it: no
seconds of imports, products over the same rows joined into one (q, k and v; gate and up), and
the final norm apart, so that an MTP head can be fed the hidden state before or after it.
"""

import math
from dataclasses import dataclass

import mlx.core as mx

from mtplx.cache import AttentionCache
from mtplx.models.attention import Rows, attend, rotate, rows_at
from mtplx.models.matrix import Matrix
from mtplx.speculation import LayerCache


@dataclass(frozen=True, slots=True)
class LlamaDims:
    """Sizes and constants of a llama-type model.

    rope_factors: [head_dim / 2], by how much the wavelengths of the rotary embedding are stretched.
    """

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_size: int
    vocab_size: int
    context_length: int
    rope_base: float
    norm_eps: float
    rope_factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class LlamaBlock:
    """Weights of one layer. Rows of q and k are in half-split rotary order.

    qkv_bias: as Qwen2 has it. qk_norm: as Qwen3 has it, the weights of a norm over each head of q
    and of k, one row for each head.
    """

    attention_norm: mx.array  # [D]
    qkv: Matrix  # [(H + 2 H_kv) * head_dim, D]
    output: Matrix  # [D, H * head_dim]
    mlp_norm: mx.array  # [D]
    gate_up: Matrix  # [2 * mlp_size, D]
    down: Matrix  # [D, mlp_size]
    qkv_bias: mx.array | None = None  # [(H + 2 H_kv) * head_dim]
    qk_norm: mx.array | None = None  # [H + H_kv, 1, head_dim]

    def arrays(self) -> list[mx.array]:
        """Every array of the layer."""
        vectors = (self.attention_norm, self.mlp_norm, self.qkv_bias, self.qk_norm)
        matrices = (self.qkv, self.output, self.gate_up, self.down)
        found = [vector for vector in vectors if vector is not None]
        return [*found, *(a for m in matrices for a in m.arrays())]


def rows_after(dims: LlamaDims, offset: int, num_rows: int) -> Rows:
    """The rows of a pass of `num_rows` tokens after `offset` others."""
    return rows_at(offset, num_rows, dims.head_dim, dims.rope_base, dims.rope_factors)


def split_heads(
    dims: LlamaDims, block: LlamaBlock, normed: mx.array, rows: Rows
) -> tuple[mx.array, mx.array, mx.array]:
    """The block's q [B, H, T, hd], k and v [B, H_kv, T, hd] of rows [B, T, D] after its norm.

    q and k are rotated to their positions.
    """
    batch, num_rows, _ = normed.shape
    qkv = block.qkv(normed)
    if block.qkv_bias is not None:
        qkv = qkv + block.qkv_bias
    heads = qkv.reshape(batch, num_rows, -1, dims.head_dim).transpose(0, 2, 1, 3)
    q_end, k_end = dims.num_heads, dims.num_heads + dims.num_kv_heads
    turning = heads[:, :k_end]
    if block.qk_norm is not None:
        turning = mx.fast.rms_norm(turning, None, dims.norm_eps) * block.qk_norm
    rotated = rotate(turning, rows, dims.rope_base)
    return rotated[:, :q_end], rotated[:, q_end:], heads[:, k_end:]


def swiglu(gate_up: mx.array) -> mx.array:
    """silu(gate) * up for [..., 2 * mlp_size].

    With a power, because MLX's sigmoid and exp on a CPU take three times as long. Not
    through mx.compile: on a CPU that starts a C++ compiler the first time, which takes longer
    than a reply's first tokens, to save a hundredth of a pass.
    """
    gate, up = mx.split(gate_up, 2, axis=-1)
    return gate * up / (1 + mx.power(1 / math.e, gate))


def run_block(
    dims: LlamaDims, block: LlamaBlock, x: mx.array, rows: Rows, cache: AttentionCache
) -> mx.array:
    """One layer over x [B, T, D], the given rows, appending to its cache."""
    normed = mx.fast.rms_norm(x, block.attention_norm, dims.norm_eps)
    q, k, v = split_heads(dims, block, normed, rows)
    mixed = attend(q, *cache.update_and_fetch(k, v), rows)
    x = x + block.output(mixed.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1))
    return x + block.down(swiglu(block.gate_up(mx.fast.rms_norm(x, block.mlp_norm, dims.norm_eps))))


@dataclass(frozen=True, slots=True)
class LlamaTarget:
    """A llama-type trunk as the decode loop sees it (speculation.Target).

    kv_dtype: what keys and values are kept in; None is what they are computed in.
    """

    dims: LlamaDims
    embedding: Matrix  # [V, D]
    blocks: tuple[LlamaBlock, ...]
    final_norm: mx.array  # [D]
    lm_head: Matrix  # [V, D]; the embedding itself when they are tied
    kv_dtype: mx.Dtype | None = None

    def arrays(self) -> list[mx.array]:
        """Every array of the model; a tied lm_head counts once."""
        ends = (
            [self.embedding] if self.lm_head is self.embedding else [self.embedding, self.lm_head]
        )
        layers = [array for block in self.blocks for array in block.arrays()]
        return [*(a for end in ends for a in end.arrays()), *layers, self.final_norm]

    @property
    def vocab_size(self) -> int:
        return self.dims.vocab_size

    @property
    def context_length(self) -> int:
        return self.dims.context_length

    def make_cache(self) -> list[LayerCache]:
        names = (f"blk.{i}.attn" for i in range(self.dims.num_layers))
        return [AttentionCache(name, self.kv_dtype) for name in names]

    def forward(self, token_ids: mx.array, cache: list[LayerCache]) -> mx.array:
        return self.forward_batch(token_ids[None], cache)[0]

    def forward_batch(self, token_ids: mx.array, cache: list[LayerCache]) -> mx.array:
        """As `forward`, for B sequences in step: token_ids [B, T] -> [B, T, D]."""
        x = self.embedding.rows(token_ids)
        rows = rows_after(self.dims, cache[0].offset, token_ids.shape[1])
        for block, layer in zip(self.blocks, cache, strict=True):
            assert isinstance(layer, AttentionCache)
            x = run_block(self.dims, block, x, rows, layer)
        return x

    def normalise(self, hidden: mx.array) -> mx.array:
        return mx.fast.rms_norm(hidden, self.final_norm, self.dims.norm_eps)

    def logits(self, hidden: mx.array) -> mx.array:
        return self.lm_head(hidden)
