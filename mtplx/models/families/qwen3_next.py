"""Qwen3-Next: the layers of Qwen 3.5's mixtures of experts, under the names of its predecessor.

mlx-lm takes a checkpoint whose experts are stored one by one for a published one, and adds one to
its norms; one with stacked experts counts as converted.
"""

from dataclasses import replace

from mtplx.models.families.qwen3_5 import QWEN3_5, full_attention, with_interval
from mtplx.models.families.rope_fields import flat_rope
from mtplx.models.family import Config


def adapted(config: Config) -> Config:
    """In the words of mlx-lm."""
    return with_interval(flat_rope(config))


def expert_block(config: Config, index: int) -> Config:
    """Layer 0 is one of attention and of experts, also where the trunk's first are dense."""
    return {**full_attention(config, index), "decoder_sparse_step": 1, "mlp_only_layers": []}


QWEN3_NEXT = replace(
    QWEN3_5,
    name="Qwen3-Next",
    model_types=("qwen3_next",),
    count_fields=("num_nextn_predict_layers", "mtp_num_hidden_layers"),
    adapt_config=adapted,
    block_config=expert_block,
    reference="a head of transformers' Qwen3-Next layer in torch",
    tested="tests/families/test_qwen3_next.py",
)

FAMILIES = (QWEN3_NEXT,)
