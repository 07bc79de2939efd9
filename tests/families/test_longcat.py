"""LongCat-Flash: a block of one attention and one dense part, while the trunk's layers have two."""

import pytest

from tests.families.assembled import LATENT, TRUNK, Formula, Layout, Recipe
from tests.families.proofs import Case, assert_numbers, assert_text, made

MODULE = "model.mtp.layers.{i}."
SECOND = ("self_attn.1.", "mlps.1.", "layernorm.1.", "mlp.experts.", "mlp.router.")
RECIPE = Recipe(
    model="LongcatFlashForCausalLM",
    config={
        **TRUNK,
        **LATENT,
        "num_hidden_layers": 4,  # two, as published
        "num_layers": 2,
        "ffn_hidden_size": 96,
        "moe_topk": 2,
        "n_routed_experts": 8,
        "zero_expert_num": 4,
        "expert_ffn_hidden_size": 32,
        "head_dim": 16,
        "rms_norm_eps": 1e-5,
    },
    layout=Layout(
        embedding_norm=MODULE + "enorm.m",
        hidden_norm=MODULE + "hnorm.m",
        projection=MODULE + "eh_proj",
        output_norm="model.mtp.norm",
        block=MODULE,
        copies=("model.mtp.embed_tokens", "lm_head"),  # the trunk's own output head
        block_renames=(
            ("self_attn.0.", "self_attn."),
            ("mlps.0.", "transformer_layer.mlp."),
            ("layernorm.0.", "layernorm."),
        ),
        block_dropped=SECOND,
    ),
    # A layer of transformers without its second half and its experts is the block.
    block={"num_layers": 1, "num_hidden_layers": 2, "routed_scaling_factor": 0.0},
    block_zeroed=("self_attn.1.o_proj.weight", "mlps.1.down_proj.weight"),
    formula=Formula(eps=1e-5),
    dropped=tuple(f"mlp.experts.{e}." for e in range(8, 12)),  # empty: they hand on what they get
    saved={"num_nextn_predict_layers": 1},
)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return made(RECIPE, tmp_path_factory.mktemp("longcat"))


def test_trunk_and_head_compute_what_the_reference_does(case: Case) -> None:
    """Within the bound, and no mutant is."""
    assert_numbers(case)


@pytest.mark.parametrize("depth", range(1, 6))
def test_drafting_changes_neither_text_nor_state(case: Case, depth: int) -> None:
    """At every depth, wherever a draft goes wrong."""
    assert_text(case, depth)
