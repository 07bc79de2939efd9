"""A llama-type trunk in PyTorch that writes text, many conversations at a time.

Its matrices and caches are in bfloat16, whose products a CPU's matrix units do several times
faster than float32; the residual stream, norms, rotations and softmax stay in float32.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import mlx.core as mx
import numpy as np

from mtplx.models.llama import LlamaBlock, LlamaDims, LlamaTarget
from mtplx.models.matrix import Matrix
from mtplx.training.own_text import SEGMENT, Advance, Halves, Ints, Writer

if TYPE_CHECKING:
    import torch

Dtype = Literal["bfloat16", "float32"]
ROOM = 64  # rows by which a cache grows


@dataclass(frozen=True, slots=True)
class TorchBlock:
    """LlamaBlock's weights: norms in float32, matrices in the dtype that is computed in."""

    attention_norm: "torch.Tensor"
    qkv: "torch.Tensor"
    output: "torch.Tensor"
    mlp_norm: "torch.Tensor"
    gate_up: "torch.Tensor"
    down: "torch.Tensor"
    qkv_bias: "torch.Tensor | None"
    qk_norm: "torch.Tensor | None"


@dataclass(frozen=True, slots=True)
class TorchTrunk:
    """LlamaTarget's weights."""

    dims: LlamaDims
    embedding: "torch.Tensor"  # [V, D]
    blocks: tuple[TorchBlock, ...]
    final_norm: "torch.Tensor"
    lm_head: "torch.Tensor"  # [V, D]


@dataclass(slots=True)
class TorchCache:
    """A layer's keys and values, [B * H_kv, room, hd]; rows behind the text's end are zero.

    They are multiplied whole and masked: a part of them would be copied for each product.
    """

    keys: "torch.Tensor"
    values: "torch.Tensor"


def to_torch(array: mx.array) -> "torch.Tensor":
    """A copy in float32."""
    import torch

    return torch.from_numpy(np.array(array.astype(mx.float32)))


def rotation(dims: LlamaDims, start: int, rows: int) -> tuple["torch.Tensor", "torch.Tensor"]:
    """Cosines and sines of the rotary embedding at positions start, start + 1, …: [T, hd / 2]."""
    import torch

    inverse = dims.rope_base ** (torch.arange(0, dims.head_dim, 2) / -dims.head_dim)
    if dims.rope_factors:
        inverse = inverse / torch.tensor(dims.rope_factors)
    angles = torch.arange(start, start + rows)[:, None] * inverse
    return angles.cos(), angles.sin()


def rotate(x: "torch.Tensor", turn: tuple["torch.Tensor", "torch.Tensor"]) -> "torch.Tensor":
    """x [..., T, hd] rotated, in float32."""
    import torch

    cos, sin = turn
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def rms_norm(x: "torch.Tensor", weight: "torch.Tensor", eps: float) -> "torch.Tensor":
    """As mx.fast.rms_norm."""
    import torch.nn.functional as F

    return F.rms_norm(x, weight.shape, weight, eps)


def torch_trunk(target: LlamaTarget, dtype: Dtype = "bfloat16") -> TorchTrunk:
    """A copy of the trunk's weights, whatever they are stored in."""
    import torch

    def matrix(of: Matrix) -> torch.Tensor:
        return to_torch(of.rows(mx.arange(of.shape[0]))).to(kind)

    def block(of: LlamaBlock) -> TorchBlock:
        return TorchBlock(
            to_torch(of.attention_norm),
            matrix(of.qkv),
            matrix(of.output),
            to_torch(of.mlp_norm),
            matrix(of.gate_up),
            matrix(of.down),
            None if of.qkv_bias is None else to_torch(of.qkv_bias).to(kind),
            None if of.qk_norm is None else to_torch(of.qk_norm),
        )

    kind = getattr(torch, dtype)
    embedding = matrix(target.embedding)
    return TorchTrunk(
        target.dims,
        embedding,
        tuple(block(of) for of in target.blocks),
        to_torch(target.final_norm),
        embedding if target.lm_head is target.embedding else matrix(target.lm_head),
    )


def read_block(
    trunk: TorchTrunk, token_ids: "torch.Tensor", cache: list[TorchCache], start: int
) -> "torch.Tensor":
    """Hidden states after the final norm, [B, T, D] float32, of token_ids [B, T] at row `start`.

    cache: what this left there before; empty at first. Behind the first row T is 1.
    """
    import torch.nn.functional as F

    dims, dtype = trunk.dims, trunk.embedding.dtype
    batch, rows = token_ids.shape
    _make_room(trunk, cache, batch, start + rows)
    turn = rotation(dims, start, rows)
    x = trunk.embedding[token_ids].float()
    for block, layer in zip(trunk.blocks, cache, strict=True):
        q, k, v = _split_heads(dims, block, x, turn)
        layer.keys[:, start : start + rows] = k.flatten(0, 1)
        layer.values[:, start : start + rows] = v.flatten(0, 1)
        if start == 0:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            mixed = _attend(q, layer, start + 1)
        x = x + F.linear(mixed.transpose(1, 2).reshape(batch, rows, -1), block.output)
        normed = rms_norm(x, block.mlp_norm, dims.norm_eps).to(dtype)
        gate, up = F.linear(normed, block.gate_up).chunk(2, dim=-1)
        x = x + F.linear(F.silu(gate) * up, block.down)
    return rms_norm(x, trunk.final_norm, dims.norm_eps)


def _split_heads(
    dims: LlamaDims,
    block: TorchBlock,
    x: "torch.Tensor",
    turn: tuple["torch.Tensor", "torch.Tensor"],
) -> tuple["torch.Tensor", "torch.Tensor", "torch.Tensor"]:
    """q [B, H, T, hd], k and v [B, H_kv, T, hd] of x [B, T, D], as `split_heads` of the model."""
    import torch.nn.functional as F

    dtype, q_end = block.qkv.dtype, dims.num_heads
    normed = rms_norm(x, block.attention_norm, dims.norm_eps).to(dtype)
    qkv = F.linear(normed, block.qkv, block.qkv_bias)
    heads = qkv.unflatten(-1, (-1, dims.head_dim)).transpose(1, 2)
    turning, v = heads.split((q_end + dims.num_kv_heads, dims.num_kv_heads), dim=1)
    if block.qk_norm is not None:
        turning = F.rms_norm(turning.float(), (dims.head_dim,), eps=dims.norm_eps) * block.qk_norm
    rotated = rotate(turning, turn).to(dtype)
    return rotated[:, :q_end], rotated[:, q_end:], v


def _make_room(trunk: TorchTrunk, cache: list[TorchCache], batch: int, rows: int) -> None:
    import torch
    import torch.nn.functional as F

    dims, dtype = trunk.dims, trunk.embedding.dtype
    if not cache:
        none = torch.zeros(batch * dims.num_kv_heads, 0, dims.head_dim, dtype=dtype)
        cache.extend(TorchCache(none, none) for _ in trunk.blocks)
    more = -(-(rows - cache[0].keys.shape[1]) // ROOM) * ROOM
    if more > 0:
        for layer in cache:
            layer.keys = F.pad(layer.keys, (0, 0, 0, more))
            layer.values = F.pad(layer.values, (0, 0, 0, more))


def _attend(q: "torch.Tensor", layer: TorchCache, num_rows: int) -> "torch.Tensor":
    """q [B, H, 1, hd] over the first `num_rows` rows of a cache -> [B, H, 1, hd]."""
    import torch

    width = q.shape[-1]
    grouped = q.reshape(len(layer.keys), -1, width)  # [B * H_kv, G, hd]
    scores = torch.bmm(grouped, layer.keys.transpose(1, 2)).float() * width**-0.5
    scores[..., num_rows:] = -torch.inf
    return torch.bmm(scores.softmax(dim=-1).to(q.dtype), layer.values).view(q.shape)


def torch_writer(target: LlamaTarget, dtype: Dtype = "bfloat16") -> Writer:
    """Writes with a copy of the trunk in PyTorch; the same seed gives the same text."""
    import torch
    import torch.nn.functional as F

    trunk = torch_trunk(target, dtype)

    def start(temperatures: Sequence[float], seed: int) -> Advance:
        random = torch.Generator().manual_seed(seed)
        cache: list[TorchCache] = []
        num_rows = 0

        def advance(block: Ints) -> tuple[Halves, Ints]:
            nonlocal num_rows
            with torch.inference_mode():
                token_ids = torch.from_numpy(block).long()
                hidden = read_block(trunk, token_ids, cache, num_rows)
                num_rows += block.shape[1]
                logits = F.linear(hidden[:, -1].to(trunk.lm_head.dtype), trunk.lm_head).float()
                sampled = sample_rows(logits, temperatures, random)
                return hidden.half().numpy(), sampled.int().numpy()

        return advance

    return start


def sample_rows(
    logits: "torch.Tensor", temperatures: Sequence[float], random: "torch.Generator"
) -> "torch.Tensor":
    """One token per row of logits [B, V], greedy rows first: [B] int64."""
    import torch
    import torch.nn.functional as F

    num_greedy = sum(t == 0 for t in temperatures)
    best = logits[:num_greedy].argmax(dim=-1)
    if num_greedy == len(temperatures):
        return best
    divisor = torch.tensor(temperatures[num_greedy:])[:, None]
    weights = F.pad(
        (logits[num_greedy:] / divisor).softmax(dim=-1), (0, -logits.shape[1] % SEGMENT)
    )
    segments = weights.view(len(weights), -1, SEGMENT)
    u = torch.rand(2, len(weights), generator=random)
    segment = _pick(segments.sum(dim=-1), u[0])
    inside = segments[torch.arange(len(weights)), segment]
    return torch.cat([best, segment * SEGMENT + _pick(inside, u[1])])


def _pick(weights: "torch.Tensor", u: "torch.Tensor") -> "torch.Tensor":
    """Inverse CDF per row of weights [B, S]."""
    cumulative = weights.cumsum(dim=-1)
    below = cumulative <= u[:, None] * cumulative[:, -1:]
    return below.sum(dim=-1).clamp(max=weights.shape[1] - 1)
