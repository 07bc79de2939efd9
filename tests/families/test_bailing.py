"""Ling 3: delta attention in the trunk, latent attention in the head."""

import pytest

from tests.families.assembled import EXPERTS, LATENT, TRUNK, Layout, Recipe
from tests.families.proofs import Case, assert_numbers, assert_text, made

LAYER = "model.layers.{layer}."
RECIPE = Recipe(
    model="BailingHybridForCausalLM",
    config={**TRUNK, **LATENT, **EXPERTS, "head_dim": 16, "layer_group_size": 3},
    layout=Layout(
        embedding_norm=LAYER + "enorm",
        hidden_norm=LAYER + "hnorm",
        projection=LAYER + "eh_proj",
        output_norm=LAYER + "final_layernorm",
        block=LAYER,
    ),
    block={"layer_types": ["full_attention"], "mlp_layer_types": ["sparse"]},
    renamed=tuple(
        (f"layers.{layer}.attention.dense.", f"layers.{layer}.attention.o_proj.")
        for layer in range(2)
    ),
    saved={
        "architectures": ["BailingMoeV3ForCausalLM"],
        "num_nextn_predict_layers": 1,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "moe_shared_expert_intermediate_size": 32,
        "max_position_embeddings": 512,
    },
)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return made(RECIPE, tmp_path_factory.mktemp("bailing"))


def test_trunk_and_head_compute_what_the_reference_does(case: Case) -> None:
    """Within the bound, and no mutant is."""
    assert_numbers(case)


@pytest.mark.parametrize("depth", range(1, 6))
def test_drafting_changes_neither_text_nor_state(case: Case, depth: int) -> None:
    """At every depth, wherever a draft goes wrong."""
    assert_text(case, depth)
