"""GLM-4.5 and 4.6 (`glm4_moe`), and GLM-4.7-Flash (`glm4_moe_lite`).

The layout is DeepSeek-V3's. The block is grouped-query attention in the one and latent attention
in the other, with experts in both.
"""

from mtplx.models.families.deepseek import COUNT_FIELDS, LAYER_NAMES, LAYER_ROOTS, expert_block
from mtplx.models.families.rope_fields import flat_rope
from mtplx.models.family import MtpFamily

GLM4_MOE = MtpFamily(
    name="GLM-4.5",
    model_types=("glm4_moe",),
    roots=LAYER_ROOTS,
    names=LAYER_NAMES,
    block=LAYER_ROOTS[0],
    count_fields=COUNT_FIELDS,
    hidden_stage="after_norm",
    adapt_config=flat_rope,
    block_config=expert_block,
    reference="transformers Glm4MoeForCausalLM and MtpModel",
    tested="tests/families/test_glm.py",
)
GLM4_MOE_LITE = MtpFamily(
    name="GLM-4.7-Flash",
    model_types=("glm4_moe_lite",),
    roots=LAYER_ROOTS,
    names=LAYER_NAMES,
    block=LAYER_ROOTS[0],
    count_fields=COUNT_FIELDS,
    hidden_stage="after_norm",
    adapt_config=flat_rope,
    block_config=expert_block,
    reference="transformers Glm4MoeLiteForCausalLM, head from the published formula",
    tested="tests/families/test_glm.py",
)
FAMILIES = (GLM4_MOE, GLM4_MOE_LITE)
