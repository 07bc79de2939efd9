"""An MTP head in the DeepSeek layout for llama-type trunks, and the drafter that runs it.

Row i takes the trunk's hidden state h_i (after the final norm) and the embedding of token i + 1:

    x = eh_proj(concat[enorm(embedding), hnorm(h_i)])  ->  decoder blocks  ->  norm  =  g_i

and the trunk's own lm_head turns g_i into the draft distribution of token i + 2. Deeper drafts
chain: g_i stands in for the hidden state of position i + 1 (it is recycled after the norm, as in
DeepSeek-V3, arXiv 2412.19437 section 2.2). The blocks have attention state of their own over
every committed row, so the head is fed the prompt as well.
"""

from dataclasses import dataclass

import mlx.core as mx

from mtplx.cache import AttentionCache
from mtplx.models.llama import LlamaBlock, LlamaDims, LlamaTarget, rows_after, run_block
from mtplx.models.matrix import DenseMatrix, Matrix
from mtplx.speculation import Draft, DraftInput, DrawDraft

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
    cache: list[AttentionCache],
) -> mx.array:
    """g [T, D] of T rows, appended to the head's caches."""
    x = join(head, dims.norm_eps, embedding, hidden)[None]
    rows = rows_after(dims, cache[0].offset, x.shape[1])
    for block, layer in zip(head.blocks, cache, strict=True):
        x = run_block(dims, block, x, rows, layer)
    return mx.fast.rms_norm(x[0], head.norm, dims.norm_eps)


@dataclass(frozen=True, slots=True)
class Shortlist:
    """The rows of lm_head that drafts are taken from.

    Reading all of lm_head would cost more than the rest of the head. Restricting q to part of the
    vocabulary stays exact, because the residual is over all of it (FR-Spec, arXiv 2502.14856).
    """

    ids: mx.array  # [S] int32, ascending
    weight: mx.array  # [S, D]

    def logits(self, g: mx.array) -> mx.array:
        """g [T, D] -> [T, S]."""
        return g @ self.weight.T


def make_shortlist(lm_head: Matrix, ids: mx.array) -> Shortlist:
    """The rows `ids` [S] of lm_head, dense."""
    return _evaluated(Shortlist(ids, lm_head.rows(ids)))


def widen(shortlist: Shortlist, lm_head: Matrix, more: list[int]) -> Shortlist:
    """The shortlist with further token ids, in practice those of the prompt."""
    missing = sorted(set(more) - set(shortlist.ids.tolist()))  # type: ignore[arg-type]
    if not missing:
        return shortlist
    extra = mx.array(missing, dtype=mx.int32)
    weight = lm_head.rows(extra).astype(shortlist.weight.dtype)
    return _evaluated(
        Shortlist(
            mx.concatenate([shortlist.ids, extra]), mx.concatenate([shortlist.weight, weight])
        )
    )


def _evaluated(shortlist: Shortlist) -> Shortlist:
    # An array that is not evaluated can only be used in the thread that made it.
    mx.eval(shortlist.ids, shortlist.weight)
    return shortlist


class HeadDrafter:
    """Drafts with an MTP head (speculation.Drafter)."""

    def __init__(self, target: LlamaTarget, head: HeadWeights, shortlist: Shortlist) -> None:
        self.target, self.head, self.shortlist = target, head, shortlist
        self.cache = [AttentionCache(f"mtp.layers.{i}.attn") for i in range(len(head.blocks))]
        self.num_rows = 0

    @property
    def support(self) -> mx.array:
        return self.shortlist.ids

    def _run(self, token_ids: mx.array, hidden: mx.array) -> mx.array:
        embedding = self.target.embedding.rows(token_ids)
        return run_head(self.target.dims, self.head, embedding, hidden, self.cache)

    def observe(self, rows: DraftInput) -> None:
        self._run(rows.token_ids, rows.hidden)
        self.num_rows = self.cache[0].offset
        # Left lazy, this work would pile up until the next draft and look like part of it.
        mx.async_eval([layer.state for layer in self.cache])

    def propose(self, rows: DraftInput, num_tokens: int, draw: DrawDraft) -> Draft:
        g = self._run(rows.token_ids, rows.hidden)[-1:]
        self.num_rows = self.cache[0].offset
        drawn, probs = [], []
        for i in range(num_tokens):
            choice = draw(self.shortlist.logits(g), i)
            if choice is None:
                break
            column, q = choice
            token_id = self.shortlist.ids[column]
            drawn.append(token_id)
            probs.append(q)
            if i + 1 < num_tokens:
                g = self._run(token_id, g)
        sampled = [q for q in probs if q is not None]
        return Draft(
            token_ids=mx.concatenate(drawn) if drawn else mx.zeros(0, dtype=mx.int32),
            probs=mx.concatenate(sampled) if sampled else None,
            support=self.shortlist.ids if sampled else None,
        )

    def keep(self) -> None:
        for layer in self.cache:
            layer.rewind(self.num_rows)

    def rewind(self, num_rows: int) -> None:
        self.num_rows = num_rows  # first: an interrupt on the way must not leave it too high
        for layer in self.cache:
            layer.rewind(num_rows)

    @property
    def num_bytes(self) -> int:
        return sum(layer.num_bytes for layer in self.cache)


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
