"""GLM-4.5 and 4.6 (`glm4_moe`), and GLM-4.7-Flash (`glm4_moe_lite`).

The layout is DeepSeek-V3's. The block is grouped-query attention in the one and latent attention
in the other, with experts in both.
"""

from dataclasses import replace

from mtplx.models.families.deepseek import DEEPSEEK_V3

GLM4_MOE = replace(
    DEEPSEEK_V3,
    name="GLM-4.5",
    model_types=("glm4_moe",),
    reference="transformers Glm4MoeForCausalLM and MtpModel",
    tested="tests/families/test_glm.py",
)
GLM4_MOE_LITE = replace(
    GLM4_MOE,
    name="GLM-4.7-Flash",
    model_types=("glm4_moe_lite",),
    reference="transformers Glm4MoeLiteForCausalLM, head from the published formula",
)
FAMILIES = (GLM4_MOE, GLM4_MOE_LITE)
