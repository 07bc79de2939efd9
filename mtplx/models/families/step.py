"""Step 3.5 (`step3p5`): three modules, each with an output head of its own.

The blocks are dense, with the window of the layers behind the trunk's; the lists of config.json go
on for them. Norms are stored as w and used as 1 + w. What feeds a module, from the trunk or from
the module before, has not been through a final norm.
"""

from typing import Any

from mtplx.models.families.deepseek import COUNT_FIELDS, LAYER_ROOTS
from mtplx.models.family import BlockPlan, BuiltBlock, Config, MtpFamily, OwnNames, Tensors
from mtplx.models.native_head import decoder_block

# Fields of config.json with an entry for every layer, the head's included.
BY_LAYER = (
    "layer_types",
    "partial_rotary_factors",
    "rope_theta",
    "swiglu_limits",
    "swiglu_limits_shared",
)


def trunk_is_raw(tensors: Tensors) -> bool | None:
    """By the names of the experts, which mlx-lm changes when it converts."""
    if any(".moe." in name for name in tensors):
        return True
    return False if any(".mlp.switch_mlp." in name for name in tensors) else None


def block_config(config: Config, index: int) -> Config:
    """Layer 0 is dense, and is what the head's layer has in the lists."""
    layer = config["num_hidden_layers"] + index
    own: dict[str, Any] = {"moe_layers_enum": "1"}
    for field in BY_LAYER:
        listed = config.get(field)
        if isinstance(listed, list) and listed:
            own[field] = [listed[min(layer, len(listed) - 1)]]
    return {**config, **own}


def without_segment(name: str) -> str:
    """Some of a block's tensors lie one level deeper than the trunk's."""
    return name.removeprefix("transformer.")


def windowed_block(plan: BlockPlan) -> BuiltBlock:
    """A decoder layer with its window, if the list of layer types gives it one."""
    kinds = block_config(plan.config, plan.index).get("layer_types") or ["full_attention"]
    is_sliding = kinds[0] == "sliding_attention"
    return decoder_block(plan, plan.config["sliding_window"] if is_sliding else None)


STEP_3_5 = MtpFamily(
    name="Step 3.5",
    model_types=("step3p5",),
    roots=LAYER_ROOTS,
    names=OwnNames(
        embedding_norm="model.layers.{layer}.enorm",
        hidden_norm="model.layers.{layer}.hnorm",
        projection="model.layers.{layer}.eh_proj",
        output_norm="model.layers.{layer}.transformer.shared_head.norm",
        output="model.layers.{layer}.transformer.shared_head.output",
        copies=("model.layers.{layer}.embed_tokens",),
    ),
    block=LAYER_ROOTS[0],
    count_fields=COUNT_FIELDS,
    hidden_stage="before_norm",
    recycle_stage="before_norm",
    zero_centred=True,
    is_raw=trunk_is_raw,
    block_config=block_config,
    block_name=without_segment,
    build_block=windowed_block,
    reference="transformers Step3p7 text model, head from the published formula",
    tested="tests/families/test_step.py",
)
FAMILIES = (STEP_3_5,)
