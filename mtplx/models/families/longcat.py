"""LongCat-Flash (`longcat_flash`): one latent attention and one dense part.

A layer of the trunk is two of each with experts beside them, so the block is put together here.
"""

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mtplx.models.families.rope_fields import flat_rope
from mtplx.models.family import BlockPlan, BuiltBlock, Config, MtpFamily, OwnNames, Tensors
from mtplx.models.mlx_lm_model import dense_model, sanitised
from mtplx.models.undo import layer_caches
from mtplx.speculation import LayerCache

PREFIX = "model.mtp.layers.{i}."


def known_fields(config: Config) -> Config:
    """What the published models are, where transformers does not write it down."""
    published = {
        "num_hidden_layers": config["num_layers"],
        "attention_method": "MLA",
        "zero_expert_type": "identity",
        "mla_scale_q_lora": True,
        "mla_scale_kv_lora": True,
    }
    return flat_rope({**published, **config})


def trunk_name(name: str) -> str:
    """The dense part as the trunk's layers would have it."""
    return name.replace("transformer_layer.mlp.", "mlp.")


def dense_block(plan: BlockPlan) -> BuiltBlock:
    """Attention and dense part of mlx-lm's, one each."""
    from mlx_lm.models.base import create_attention_mask

    model = dense_model({**plan.config, "model_type": "longcat_flash", "num_layers": 1})
    (layer,) = model.layers
    block: Any = nn.Module()
    block.self_attn, block.mlp = layer.self_attn[0], layer.mlps[0]
    block.input_layernorm = layer.input_layernorm[0]
    block.post_attention_layernorm = layer.post_attention_layernorm[0]

    def run(x: mx.array, cache: list[LayerCache]) -> mx.array:
        mask = create_attention_mask(x, cache[0], return_array=True)
        x = x + block.self_attn(block.input_layernorm(x), mask=mask, cache=cache[0])
        result: mx.array = x + block.mlp(block.post_attention_layernorm(x))
        return result

    def sanitize(tensors: Tensors) -> Tensors:
        """mlx-lm splits the attention's matrix; the first of two attentions is meant."""
        there, here = "model.layers.0.self_attn.0.", "self_attn."
        moved = {name.replace(here, there): array for name, array in tensors.items()}
        found = sanitised(model, moved)
        return {name.replace(there, here): array for name, array in found.items()}

    def make_cache() -> list[LayerCache]:
        (pair,) = layer_caches(model)
        return [pair[0]]  # type: ignore[index]  # a cache.CacheGroup, of the two attentions

    return BuiltBlock(block, run, make_cache, sanitize)


LONGCAT_FLASH = MtpFamily(
    name="LongCat-Flash",
    model_types=("longcat_flash",),
    roots=("model.mtp.",),
    names=OwnNames(
        embedding_norm=PREFIX + "enorm.m",
        hidden_norm=PREFIX + "hnorm.m",
        projection=PREFIX + "eh_proj",
        output_norm="model.mtp.norm",
        copies=("model.mtp.embed_tokens",),
    ),
    block=PREFIX,
    count_fields=("num_nextn_predict_layers",),
    hidden_stage="after_norm",
    adapt_config=known_fields,
    block_name=trunk_name,
    build_block=dense_block,
    reference="transformers LongcatFlashForCausalLM, head from the published formula",
    tested="tests/families/test_longcat.py",
)
FAMILIES = (LONGCAT_FLASH,)
