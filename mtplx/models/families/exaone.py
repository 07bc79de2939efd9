"""K-EXAONE (`exaone_moe`): a dense block under Qwen's names, with plain norms.

The trunk alternates sliding windows with global attention without positions; the head's attention
reaches over everything and always has them. mlx-lm gives positions to every layer of a model
without windows, which a block on its own is.
"""

from mtplx.models.families.rope_fields import flat_rope
from mtplx.models.family import Config, MtpFamily, OwnNames


def known_fields(config: Config) -> Config:
    """Which layers have experts, where transformers names the kind of each."""
    kinds = config.get("mlp_layer_types")
    if isinstance(kinds, list) and "is_moe_layer" not in config:
        config = {**config, "is_moe_layer": [kind == "sparse" for kind in kinds]}
    return flat_rope(config)


def dense_block(config: Config, index: int) -> Config:
    """Layer 0 dense, with attention over everything."""
    return {**config, "is_moe_layer": [False], "layer_types": ["full_attention"]}


EXAONE_MOE = MtpFamily(
    name="K-EXAONE",
    model_types=("exaone_moe",),
    roots=("mtp.",),
    names=OwnNames(
        embedding_norm="mtp.pre_fc_norm_embedding",
        hidden_norm="mtp.pre_fc_norm_hidden",
        projection="mtp.fc",
        output_norm="mtp.norm",
    ),
    block="mtp.layers.{i}.",
    count_fields=("num_nextn_predict_layers",),
    hidden_stage="after_norm",
    adapt_config=known_fields,
    block_config=dense_block,
    reference="transformers ExaoneMoeForCausalLM, head from the published formula",
    tested="tests/families/test_exaone.py",
)
FAMILIES = (EXAONE_MOE,)
