"""DeepSeek-V3.2 and GLM-5 (`glm_moe_dsa`): DeepSeek-V3's layout with a sparse index.

Every attention has an index of its own, the head's included, and keeps its keys beside the latent
rows.
"""

from dataclasses import replace

import mlx.core as mx

from mtplx.models.families.deepseek import DEEPSEEK_V3
from mtplx.models.families.rope_fields import flat_rope
from mtplx.models.family import BlockPlan, BuiltBlock, Config
from mtplx.models.native_head import decoder_block
from mtplx.speculation import LayerCache


def known_fields(config: Config) -> Config:
    """What the published models are, where transformers does not write it down."""
    published = {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1}
    return flat_rope({**published, **config})


def indexed_block(plan: BlockPlan) -> BuiltBlock:
    """A decoder layer whose cache is two: latent rows, and keys of the index."""
    from mlx_lm.models.base import create_attention_mask

    block = decoder_block(plan)

    def run(x: mx.array, cache: list[LayerCache]) -> mx.array:
        rows = cache[0][0]  # type: ignore[index]  # a cache.CacheGroup
        mask = create_attention_mask(x, rows, return_array=True)
        result: mx.array = block.module(x, mask, cache[0])
        return result

    return replace(block, run=run)


DEEPSEEK_V3_2 = replace(
    DEEPSEEK_V3,
    name="DeepSeek-V3.2",
    model_types=("deepseek_v32",),
    adapt_config=known_fields,
    build_block=indexed_block,
    reference="transformers DeepseekV32ForCausalLM, head from the published formula",
    tested="tests/families/test_sparse.py",
)
GLM_5 = replace(
    DEEPSEEK_V3_2,
    name="GLM-5",
    model_types=("glm_moe_dsa",),
    reference="transformers GlmMoeDsaForCausalLM, head from the published formula",
)
FAMILIES = (DEEPSEEK_V3_2, GLM_5)
