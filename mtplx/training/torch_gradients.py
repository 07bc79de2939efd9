"""The loss of `training/loop.py` and its gradients in PyTorch, products in bfloat16.

Parameters, the residual stream, norms and softmax over positions are in float32; what is
multiplied is rounded to bfloat16, and so is the distribution over the shortlist. The gradients
differ from MLX's by a few per cent of their length.
"""

from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from mtplx.blas import num_cores
from mtplx.models.head import BLOCK_FIELDS
from mtplx.models.llama import LlamaDims, LlamaTarget
from mtplx.models.shortlist import Shortlist
from mtplx.training.examples import Batch
from mtplx.training.loop import Gradients
from mtplx.training.optimiser import Parameters
from mtplx.training.torch_trunk import Dtype, rms_norm, rotate, rotation, to_torch

if TYPE_CHECKING:
    import torch

CHUNK = 512  # rows of the cross-entropy at a time: their logits stay in the CPU's caches

Chain = list[tuple["torch.Tensor", "torch.Tensor"]]  # as in `training/unrolled.py`


def torch_gradients(
    target: LlamaTarget, shortlist: Shortlist, dtype: Dtype = "bfloat16"
) -> Gradients:
    """The loss as `batch_loss` has it, and its gradients, in float32."""
    import torch

    # PyTorch counts the machine's cores, not a container's share of them.
    torch.set_num_threads(min(torch.get_num_threads(), num_cores()))
    weight = to_torch(shortlist.weight).to(getattr(torch, dtype))

    def gradients(
        parameters: Parameters, batch: Batch, weights: tuple[float, ...]
    ) -> tuple[mx.array, Parameters]:
        values = {name: to_torch(value).requires_grad_() for name, value in parameters.items()}
        embedded = to_torch(target.embedding.rows(batch.token_ids))
        depth, rows = len(weights), batch.hidden.shape[1]
        states = _unroll(target.dims, values, embedded, to_torch(batch.hidden), depth, weight.dtype)
        columns, probs = torch.from_numpy(np.array(batch.top_columns)), to_torch(batch.top_probs)
        total, slopes = 0.0, []
        for step, share in enumerate(weights):
            at = slice(step, step + rows)
            loss, slope = cross_entropy(
                states[step].detach().flatten(0, 1),
                weight,
                columns[:, at].flatten(0, 1).long(),
                probs[:, at].flatten(0, 1),
            )
            total += loss * share / sum(weights)
            slopes.append((slope * (share / sum(weights))).view_as(states[step]))
        found = torch.autograd.grad(states, list(values.values()), slopes)
        named = zip(values, found, strict=True)
        return mx.array(total), {name: mx.array(slope.numpy()) for name, slope in named}

    return gradients


def cross_entropy(
    g: "torch.Tensor", weight: "torch.Tensor", columns: "torch.Tensor", probs: "torch.Tensor"
) -> tuple[float, "torch.Tensor"]:
    """The mean over rows of H(p, softmax(g @ weight.T)), and its gradient to g, [N, D] float32.

    g: [N, D] float32. weight: [S, D], whose dtype is computed in. columns, probs: [N, K], p.
    """
    import torch

    rounded, slope, total = g.to(weight.dtype), torch.empty_like(g), 0.0
    for start in range(0, len(g), CHUNK):
        at = slice(start, start + CHUNK)
        q = (rounded[at] @ weight.T).softmax(dim=-1)
        top = q.gather(1, columns[at]).float()
        total -= float((probs[at] * top.clamp(min=1e-30).log()).sum())
        q.scatter_(1, columns[at], (top - probs[at]).to(q.dtype))
        slope[at] = (q @ weight).float()
    return total / len(g), slope / len(g)


def _unroll(
    dims: LlamaDims,
    values: dict[str, "torch.Tensor"],
    embedded: "torch.Tensor",
    hidden: "torch.Tensor",
    depth: int,
    dtype: "torch.dtype",
) -> list["torch.Tensor"]:
    """As `unroll` of `training/unrolled.py`, from training parameters."""
    import torch

    rows, eps = hidden.shape[1], dims.norm_eps
    mask = torch.full((rows, rows), -torch.inf).triu(1)
    num_blocks = sum(name.endswith(".qkv") for name in values)
    chains: list[Chain] = [[] for _ in range(num_blocks)]
    states = []
    for step in range(depth):
        embedding = rms_norm(embedded[:, step : step + rows], values["enorm"], eps)
        joined = torch.cat([embedding, rms_norm(hidden, values["hnorm"], eps)], dim=-1)
        x = _linear(joined, values["eh_proj"], dtype)
        for i, chain in enumerate(chains):
            block = {name: values[f"blocks.{i}.{name}"] for name in BLOCK_FIELDS}
            x = _block_step(dims, block, x, chain, mask, dtype)
        hidden = rms_norm(x, values["norm"], eps)
        states.append(hidden)
    return states


def _block_step(
    dims: LlamaDims,
    block: dict[str, "torch.Tensor"],
    x: "torch.Tensor",
    chain: Chain,
    mask: "torch.Tensor",
    dtype: "torch.dtype",
) -> "torch.Tensor":
    import torch.nn.functional as F

    batch, rows, _ = x.shape
    normed = rms_norm(x, block["attention_norm"], dims.norm_eps)
    heads = _linear(normed, block["qkv"], dtype).view(batch, rows, -1, dims.head_dim)
    sizes = (dims.num_heads, dims.num_kv_heads, dims.num_kv_heads)
    q, k, v = heads.transpose(1, 2).split(sizes, dim=1)
    turn = rotation(dims, len(chain), rows)
    chain.append((rotate(k, turn)[:, :, None], v[:, :, None]))  # [B, H_kv, 1, T, hd]
    q = rotate(q, turn).unflatten(1, (dims.num_kv_heads, -1)) * dims.head_dim**-0.5
    mixed = _attend(q, chain, mask, dtype).flatten(1, 2).transpose(1, 2)
    x = x + _linear(mixed.reshape(batch, rows, -1), block["output"], dtype)
    normed = rms_norm(x, block["mlp_norm"], dims.norm_eps)
    gate, up = _linear(normed, block["gate_up"], dtype).chunk(2, dim=-1)
    return x + _linear(F.silu(gate) * up, block["down"], dtype)


def _attend(
    q: "torch.Tensor", chain: Chain, mask: "torch.Tensor", dtype: "torch.dtype"
) -> "torch.Tensor":
    """q [B, H_kv, G, T, hd] of the chain's newest step -> the same shape."""
    import torch

    rows = q.shape[-2]
    (keys, values), later = chain[0], chain[1:]
    scores = (q.to(dtype) @ keys.mT.to(dtype)).float() + mask
    own = [(q * k).sum(dim=-1, keepdim=True) for k, _ in later]
    weights = torch.cat([scores, *own], dim=-1).softmax(dim=-1)
    mixed = (weights[..., :rows].to(dtype) @ values.to(dtype)).float()
    for j, (_, v) in enumerate(later):
        mixed = mixed + weights[..., rows + j : rows + j + 1] * v
    return mixed


def _linear(x: "torch.Tensor", weight: "torch.Tensor", dtype: "torch.dtype") -> "torch.Tensor":
    import torch.nn.functional as F

    return F.linear(x.to(dtype), weight.to(dtype)).float()
