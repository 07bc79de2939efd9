"""Latent attention over short blocks without expanding the context.

MLA (DeepSeek-V2, arXiv 2405.04434) caches one latent row and one rotary key per token. A query can
be taken into the latent space and attend there ("absorbed"), or keys and values of every head can
be made again from all latent rows. mlx-lm does the first for a single row and the second for more,
so verifying two tokens would cost many times what one does, and round differently. Here blocks of
up to `MAX_ROWS` rows are absorbed too.

Nothing in mlx-lm is changed: an attention module gets a class of ours derived from its own.
"""

from functools import cache as remembered
from typing import Any

import mlx.core as mx

from mtplx.models.mla_attention import Finish, attend_absorbed, gated_channels, gated_heads, joined
from mtplx.models.mla_sparse import attend_sparse

MAX_ROWS = 17  # of the longest round; longer passes are prefill, where expanding once pays

SCALED = "mistral4.Mistral4Attention"  # takes a scale of its queries along
SPARSE = "deepseek_v32.DeepseekV32Attention"  # attends to what an index selects
COVERED: dict[str, Finish] = {
    "bailing_hybrid.MultiLatentAttention": joined,
    "bailing_moe_v3.BailingMLA": gated_heads,
    "deepseek_v3.DeepseekV3Attention": joined,
    SPARSE: joined,
    "glm4_moe_lite.Glm4MoeLiteAttention": joined,
    "kimi_k3.KimiK3MLAAttention": gated_channels,
    "kimi_linear.KimiMLAAttention": joined,
    "longcat_flash.LongcatFlashMLA": joined,
    SCALED: joined,
}
"""mlx-lm's attention modules with that branch, as file and class."""


def absorb_short_blocks(model: Any) -> tuple[str, ...]:
    """Give every latent attention of an mlx-lm model the absorbed path for up to `MAX_ROWS` rows.

    Returns the names of modules that expand the context and are not known here: such a model
    decodes one token at a time as well as ever, but a block of several would be slow.
    """
    unknown = set()
    for _, module in model.named_modules():
        if "embed_q" not in module or "unembed_out" not in module:
            continue
        kind = type(module)
        name = f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}"
        if name in COVERED:
            module.__class__ = _absorbing(kind, name)  # type: ignore[arg-type]  # a class is hashable
        elif not getattr(kind, "absorbs_short_blocks", False):
            unknown.add(name)
    return tuple(sorted(unknown))


@remembered
def _absorbing(kind: Any, name: str) -> Any:
    """A class like `kind` whose short blocks are absorbed."""
    finish = COVERED[name]

    def attend(
        self: Any, x: mx.array, mask: mx.array | None = None, cache: Any | None = None
    ) -> mx.array:
        if not 1 < x.shape[1] <= MAX_ROWS or (name == SPARSE and cache is None):
            return kind.__call__(self, x, mask, cache)  # type: ignore[no-any-return]
        if name == SPARSE:
            return attend_sparse(self, x, mask, cache)
        return attend_absorbed(self, x, mask, cache, finish)

    def attend_scaled(
        self: Any,
        x: mx.array,
        attn_scale: mx.array,
        mask: mx.array | str | None = None,
        cache: Any | None = None,
    ) -> mx.array:
        if not 1 < x.shape[1] <= MAX_ROWS:
            return kind.__call__(self, x, attn_scale, mask, cache)  # type: ignore[no-any-return]
        return attend_absorbed(self, x, mask, cache, finish, attn_scale)

    call = attend_scaled if name == SCALED else attend
    return type(kind.__name__, (kind,), {"__call__": call, "absorbs_short_blocks": True})
