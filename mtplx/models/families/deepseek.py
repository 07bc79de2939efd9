"""DeepSeek-V3 and R1, Kimi-K2, and the models that took over their head (arXiv 2412.19437).

A module lies where the layer behind the trunk's would, and is one more layer like its last ones:
latent attention and experts, also where the trunk begins dense. Embedding and output head are
repeated in the checkpoint; the trunk's are used.
"""

from mtplx.models.families.rope_fields import flat_rope
from mtplx.models.family import Config, MtpFamily, OwnNames

LAYER_ROOTS = ("model.layers.{layer}.",)
LAYER_NAMES = OwnNames(
    embedding_norm="model.layers.{layer}.enorm",
    hidden_norm="model.layers.{layer}.hnorm",
    projection="model.layers.{layer}.eh_proj",
    output_norm="model.layers.{layer}.shared_head.norm",
    copies=("model.layers.{layer}.shared_head.head", "model.layers.{layer}.embed_tokens"),
)
COUNT_FIELDS = ("num_nextn_predict_layers", "num_mtp_layers")


def expert_block(config: Config, index: int) -> Config:
    """Layer 0 with experts."""
    return {**config, "first_k_dense_replace": 0, "moe_layer_freq": 1}


DEEPSEEK_V3 = MtpFamily(
    name="DeepSeek-V3",
    model_types=("deepseek_v3", "kimi_k2", "joyai_llm_flash"),
    roots=LAYER_ROOTS,
    names=LAYER_NAMES,
    block=LAYER_ROOTS[0],
    count_fields=COUNT_FIELDS,
    hidden_stage="after_norm",
    adapt_config=flat_rope,
    block_config=expert_block,
    reference="transformers DeepseekV3ForCausalLM and MtpModel",
    tested="tests/families/test_deepseek.py",
)
FAMILIES = (DEEPSEEK_V3,)
