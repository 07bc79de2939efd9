"""MiMo-7B (arXiv 2505.07608): a dense block, the hidden state first, both norms left out.

The head takes the trunk's hidden state as it is before the final norm, and hands its own on as it
is before `final_layernorm`.
"""

from mtplx.models.families.rope_fields import flat_rope
from mtplx.models.family import MtpFamily, OwnNames

MIMO = MtpFamily(
    name="MiMo",
    model_types=("mimo",),
    roots=("model.mtp_layers.",),
    names=OwnNames(
        embedding_norm="model.mtp_layers.{i}.token_layernorm",
        hidden_norm="model.mtp_layers.{i}.hidden_layernorm",
        projection="model.mtp_layers.{i}.input_proj",
        output_norm="model.mtp_layers.{i}.final_layernorm",
    ),
    block="model.mtp_layers.{i}.",
    count_fields=("num_nextn_predict_layers",),
    concat="hidden_first",
    hidden_stage="before_norm",
    recycle_stage="before_norm",
    adapt_config=flat_rope,
    reference="transformers Qwen2ForCausalLM, head from the published formula",
    tested="tests/families/test_mimo.py",
)
FAMILIES = (MIMO,)
