"""MiMo-V2-Flash (`mimo_v2_flash`): a few small dense modules, all of them fed by the trunk.

Each reaches over a sliding window with sinks. Module j takes the trunk's hidden state together
with the token j + 1 places on, so there are as many drafts as modules.
"""

from mtplx.models.family import BlockPlan, BuiltBlock, Config, MtpFamily, OwnNames
from mtplx.models.native_head import decoder_block

PREFIX = "model.mtp.layers.{i}."


def block_config(config: Config, index: int) -> Config:
    """Layer 0 is dense and has a window. mlx-lm asks for a layer of either kind in the list."""
    return {**config, "hybrid_layer_pattern": [1, 0], "moe_layer_freq": [0, 0]}


def trunk_name(name: str) -> str:
    """The norm before the dense part has a name of its own."""
    return name.replace("pre_mlp_layernorm", "post_attention_layernorm")


def windowed_block(plan: BlockPlan) -> BuiltBlock:
    """A decoder layer with its window."""
    return decoder_block(plan, plan.config["sliding_window_size"])


MIMO_V2_FLASH = MtpFamily(
    name="MiMo-V2-Flash",
    model_types=("mimo_v2_flash",),
    roots=("model.mtp.layers.",),
    names=OwnNames(
        embedding_norm=PREFIX + "enorm",
        hidden_norm=PREFIX + "hnorm",
        projection=PREFIX + "eh_proj",
        output_norm=PREFIX + "final_layernorm",
    ),
    block=PREFIX,
    count_fields=(),
    hidden_stage="after_norm",
    chained=False,
    eps_field="layernorm_epsilon",
    block_config=block_config,
    block_name=trunk_name,
    build_block=windowed_block,
    reference="transformers MiMoV2FlashForCausalLM, head from the published formula",
    tested="tests/families/test_mimo_v2.py",
)
FAMILIES = (MIMO_V2_FLASH,)
