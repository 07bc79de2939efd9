"""Ling and Ring of Bailing's hybrid kind (`bailing_hybrid`), versions 2.5 and 3.

The trunk mixes linear attention, of another kind in each version, with latent attention; the head
is latent attention and experts in both. mlx-lm tells the versions apart by `architectures`.
"""

from mtplx.models.families.deepseek import COUNT_FIELDS, LAYER_ROOTS
from mtplx.models.families.rope_fields import flat_rope
from mtplx.models.family import Config, MtpFamily, OwnNames


def latent_block(config: Config, index: int) -> Config:
    """Layer 0 with latent attention and experts."""
    return {**config, "layer_group_size": 1, "first_k_dense_replace": 0}


BAILING_HYBRID = MtpFamily(
    name="Ling / Ring (hybrid)",
    model_types=("bailing_hybrid",),
    roots=LAYER_ROOTS,
    names=OwnNames(
        embedding_norm="model.layers.{layer}.enorm",
        hidden_norm="model.layers.{layer}.hnorm",
        projection="model.layers.{layer}.eh_proj",
        output_norm="model.layers.{layer}.final_layernorm",
    ),
    block=LAYER_ROOTS[0],
    count_fields=COUNT_FIELDS,
    hidden_stage="after_norm",
    adapt_config=flat_rope,
    block_config=latent_block,
    reference="transformers BailingHybridForCausalLM (version 3), head from the published formula",
    tested="tests/families/test_bailing.py",
)
FAMILIES = (BAILING_HYBRID,)
