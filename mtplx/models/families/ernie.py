"""ERNIE 4.5 of experts (`ernie4_5_moe`): a dense block, and the trunk's own final norm behind it.

Published training code feeds the hidden state before the final norm, and puts that norm before the
output head.
"""

from mtplx.models.families.rope_fields import flat_rope
from mtplx.models.family import Config, MtpFamily, OwnNames


def dense_block(config: Config, index: int) -> Config:
    """Layer 0 without experts."""
    return {**config, "moe_layer_start_index": 1, "moe_layer_end_index": 0}


ERNIE_4_5_MOE = MtpFamily(
    name="ERNIE 4.5",
    model_types=("ernie4_5_moe",),
    roots=("model.mtp_",),
    names=OwnNames(
        embedding_norm="model.mtp_emb_norm.{i}",
        hidden_norm="model.mtp_hidden_norm.{i}",
        projection="model.mtp_linear_proj.{i}",
        output_norm=None,
    ),
    block="model.mtp_block.{i}.",
    count_fields=("num_nextn_predict_layers",),
    hidden_stage="before_norm",
    recycle_stage="before_norm",
    adapt_config=flat_rope,
    block_config=dense_block,
    reference="transformers Ernie4_5_MoeForCausalLM, head from the published formula",
    tested="tests/families/test_ernie.py",
)
FAMILIES = (ERNIE_4_5_MOE,)
