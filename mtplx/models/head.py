"""An MTP head in the DeepSeek layout for llama-type trunks.

Row i takes the trunk's hidden state h_i (after the final norm) and the embedding of token i + 1:

    x = eh_proj(concat[enorm(embedding), hnorm(h_i)])  ->  decoder blocks  ->  norm  =  g_i

and the trunk's own lm_head turns g_i into the draft distribution of token i + 2. Deeper drafts
chain: g_i stands in for the hidden state of position i + 1 (it is recycled after the norm, as in
DeepSeek-V3, arXiv 2412.19437 section 2.2). The blocks have attention state of their own over
every committed row, so the head is fed the prompt as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import mlx.core as mx

from mtplx.cache import AttentionCache, SinkCache
from mtplx.models.attention import Rows
from mtplx.models.drafter import HeadRows
from mtplx.models.llama import LlamaBlock, LlamaDims, rows_after, run_block
from mtplx.models.matrix import DenseMatrix, Matrix
from mtplx.speculation import HiddenStage, LayerCache

BLOCK_FIELDS = ("attention_norm", "qkv", "output", "mlp_norm", "gate_up", "down")


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """The head's own tensors; embedding and lm_head are the trunk's."""

    enorm: mx.array  # [D]
    hnorm: mx.array  # [D]
    eh_proj: Matrix  # [D, 2 D]; the embedding's half comes first
    blocks: tuple[LlamaBlock, ...]
    norm: mx.array  # [D]

    def arrays(self) -> list[mx.array]:
        """Every array of the head."""
        layers = [array for block in self.blocks for array in block.arrays()]
        return [self.enorm, self.hnorm, *self.eh_proj.arrays(), *layers, self.norm]


def join(head: HeadWeights, eps: float, embedding: mx.array, hidden: mx.array) -> mx.array:
    """The blocks' input [..., D] from embeddings and hidden states [..., D]."""
    normed = [
        mx.fast.rms_norm(embedding, head.enorm, eps),
        mx.fast.rms_norm(hidden, head.hnorm, eps),
    ]
    return head.eh_proj(mx.concatenate(normed, axis=-1))


def run_head(
    dims: LlamaDims,
    head: HeadWeights,
    embedding: mx.array,
    hidden: mx.array,
    cache: Sequence[LayerCache],
) -> mx.array:
    """g [T, D] of T rows, appended to the head's caches."""
    x = join(head, dims.norm_eps, embedding, hidden)[None]
    rows = _rows(dims, cache[0], x.shape[1])
    for block, layer in zip(head.blocks, cache, strict=True):
        assert isinstance(layer, AttentionCache)
        x = run_block(dims, block, x, rows, layer)
    return mx.fast.rms_norm(x[0], head.norm, dims.norm_eps)


def _rows(dims: LlamaDims, layer: LayerCache, num_rows: int) -> Rows:
    """The rows of a pass, which see what the head's caches let them see."""
    rows = rows_after(dims, layer.offset, num_rows)
    if num_rows == 1 or not isinstance(layer, SinkCache) or not layer.hides(num_rows):
        return rows
    return replace(rows, mask=mx.where(layer.seen(num_rows), 0.0, -mx.inf))


class Trunk(Protocol):
    """What a head takes from its trunk."""

    @property
    def dims(self) -> LlamaDims: ...

    @property
    def embedding(self) -> Matrix: ...

    @property
    def lm_head(self) -> Matrix: ...


@dataclass(frozen=True, slots=True)
class TrunkParts:
    """A trunk whose own type does not tell its sizes (`Trunk`)."""

    dims: LlamaDims
    embedding: Matrix
    lm_head: Matrix


@dataclass(frozen=True, slots=True)
class LlamaHead:
    """The head on its trunk, one module of all its blocks (drafter.Head).

    kv_dtype: what its keys and values are kept in; None is what they are computed in.
    """

    target: Trunk
    weights: HeadWeights
    hidden_stage: HiddenStage = "after_norm"
    chained: bool = True
    kv_dtype: mx.Dtype | None = None

    def make_cache(self) -> list[list[LayerCache]]:
        names = (f"mtp.layers.{i}.attn" for i in range(len(self.weights.blocks)))
        return [[SinkCache(name, dtype=self.kv_dtype) for name in names]]

    def run(
        self, module: int, token_ids: mx.array, hidden: mx.array, cache: list[LayerCache]
    ) -> HeadRows:
        embedding = self.target.embedding.rows(token_ids)
        g = run_head(self.target.dims, self.weights, embedding, hidden, cache)
        g = g.astype(hidden.dtype)  # what the output layer multiplies without a copy
        return HeadRows(g, g)

    def logits(self, module: int, output: mx.array) -> mx.array:
        return self.target.lm_head(output)


def dense_head(tensors: dict[str, mx.array], num_blocks: int) -> HeadWeights:
    """A head from its training parameters (`training/initialise.py` names)."""
    blocks = []
    for i in range(num_blocks):
        values = [tensors[f"blocks.{i}.{name}"] for name in BLOCK_FIELDS]
        wrapped = [v if v.ndim == 1 else DenseMatrix(v) for v in values]
        blocks.append(LlamaBlock(*wrapped))  # type: ignore[arg-type]
    return HeadWeights(
        tensors["enorm"],
        tensors["hnorm"],
        DenseMatrix(tensors["eh_proj"]),
        tuple(blocks),
        tensors["norm"],
    )
