"""The head run several steps deep on its own recycled state, for every row of a window at once.

Row i is an anchor: step 0 sees the trunk's hidden state there, step j sees g of step j - 1 and
the embedding of token i + 1 + j. As when drafting, the keys that step j attends to are those of
step 0 at rows up to i, and those of its own chain, steps 1..j of the same anchor.
"""

import mlx.core as mx

from mtplx.models.head import HeadWeights, join
from mtplx.models.llama import LlamaBlock, LlamaDims, rows_after, split_heads, swiglu

Chain = list[tuple[mx.array, mx.array]]  # keys and values of each step so far, [B, H_kv, T, hd]


def _attend(dims: LlamaDims, q: mx.array, chain: Chain, mask: mx.array) -> mx.array:
    """q [B, H, T, hd] of the chain's newest step -> [B, T, H * hd]."""
    batch, heads, rows, width = q.shape
    q = q.reshape(batch, dims.num_kv_heads, -1, rows, width) * width**-0.5
    (keys, values), later = chain[0], chain[1:]
    scores = q @ keys[:, :, None].swapaxes(-1, -2) + mask  # [B, H_kv, G, T, T]
    own = [(q * k[:, :, None]).sum(axis=-1, keepdims=True) for k, _ in later]
    weights = mx.softmax(mx.concatenate([scores, *own], axis=-1), axis=-1)
    mixed = weights[..., :rows] @ values[:, :, None]
    for j, (_, v) in enumerate(later):
        mixed = mixed + weights[..., rows + j : rows + j + 1] * v[:, :, None]
    return mixed.reshape(batch, heads, rows, width).transpose(0, 2, 1, 3).reshape(batch, rows, -1)


def _block_step(
    dims: LlamaDims, block: LlamaBlock, x: mx.array, chain: Chain, mask: mx.array
) -> mx.array:
    rows = rows_after(dims, len(chain), x.shape[1])
    normed = mx.fast.rms_norm(x, block.attention_norm, dims.norm_eps)
    q, k, v = split_heads(dims, block, normed, rows)
    chain.append((k, v))
    x = x + block.output(_attend(dims, q, chain, mask))
    return x + block.down(swiglu(block.gate_up(mx.fast.rms_norm(x, block.mlp_norm, dims.norm_eps))))


def unroll(
    dims: LlamaDims, head: HeadWeights, embedding: mx.array, hidden: mx.array, depth: int
) -> list[mx.array]:
    """g [B, T, D] of steps 0..depth - 1.

    hidden: [B, T, D]; embedding: [B, T + depth - 1, D], column c that of the token after row c.
    """
    rows = hidden.shape[1]
    index = mx.arange(rows)
    mask = mx.where(index[None] <= index[:, None], 0.0, -mx.inf)
    chains: list[Chain] = [[] for _ in head.blocks]
    states: list[mx.array] = []
    for step in range(depth):
        x = join(head, dims.norm_eps, embedding[:, step : step + rows], hidden)
        for block, chain in zip(head.blocks, chains, strict=True):
            x = _block_step(dims, block, x, chain, mask)
        hidden = mx.fast.rms_norm(x, head.norm, dims.norm_eps)
        states.append(hidden)
    return states
