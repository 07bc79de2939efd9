"""Recipes of tiny Qwen checkpoints (assembled.py)."""

from dataclasses import replace
from pathlib import Path

from tests.families.assembled import TRUNK, Formula, Layout, Recipe, assemble, write_checkpoint
from tests.tiny_folder import write_tokenizer

LAYOUT = Layout(
    embedding_norm="mtp.pre_fc_norm_embedding",
    hidden_norm="mtp.pre_fc_norm_hidden",
    projection="mtp.fc",
    output_norm="mtp.norm",
    block="mtp.layers.{i}.",
)
HYBRID = {
    **TRUNK,
    "head_dim": 32,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
EXPERTS = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
QWEN3_5 = Recipe(
    model="Qwen3_5ForCausalLM",
    config=HYBRID,
    layout=LAYOUT,
    formula=Formula(zero_centred=True),
    block={"layer_types": ["full_attention"]},
    saved={"mtp_num_hidden_layers": 1},
)
QWEN3_5_MOE = Recipe(
    model="Qwen3_5MoeForCausalLM",
    config=HYBRID | EXPERTS,
    layout=LAYOUT,
    formula=Formula(zero_centred=True),
    block={"layer_types": ["full_attention"]},
    saved={"mtp_num_hidden_layers": 1},
)
QWEN3_NEXT = Recipe(
    model="Qwen3NextForCausalLM",
    config=HYBRID | EXPERTS | {"decoder_sparse_step": 1, "mlp_only_layers": []},
    layout=LAYOUT,
    formula=Formula(zero_centred=True),
    block={"layer_types": ["full_attention"]},
    saved={"num_nextn_predict_layers": 1},
)


def write_served(folder: Path) -> Path:
    """A published Qwen 3.5 with a tokenizer, as a user has it."""
    recipe = replace(QWEN3_5, config={**QWEN3_5.config, "vocab_size": 257})
    write_checkpoint(assemble(recipe), folder)
    write_tokenizer(folder)
    (folder / "chat_template.jinja").write_text(
        "{% for message in messages %}{{ message.content }}\n{% endfor %}"
    )
    return folder
