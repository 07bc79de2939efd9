"""Nemotron 3: a recurrent hybrid whose head is attention and then experts."""

import pytest

from tests.families.assembled import TRUNK, Formula, Layout, Recipe
from tests.families.proofs import Case, assert_numbers, assert_text, made

RECIPE = Recipe(
    model="NemotronHForCausalLM",
    config={
        **{key: value for key, value in TRUNK.items() if key != "num_hidden_layers"},
        "layers_block_type": ["mamba", "moe", "attention", "mamba", "mlp"],
        "head_dim": 16,
        "ssm_state_size": 16,
        "mamba_num_heads": 4,
        "mamba_head_dim": 32,
        "n_groups": 2,
        "moe_intermediate_size": 32,
        "moe_shared_expert_intermediate_size": 32,
        "moe_latent_size": 32,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "layer_norm_epsilon": 1e-5,
    },
    layout=Layout(
        embedding_norm="mtp.layers.0.enorm",
        hidden_norm="mtp.layers.0.hnorm",
        projection="mtp.layers.0.eh_proj",
        output_norm="mtp.layers.1.final_layernorm",
        block="mtp.layers.",
    ),
    formula=Formula(eps=1e-5),
    block={"layers_block_type": ["attention", "moe"]},
    saved={"time_step_limit": [0.001, 1e30], "num_nextn_predict_layers": 1},
    final_norm="model.norm_f",
    block_prefix="backbone.layers.",
)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return made(RECIPE, tmp_path_factory.mktemp("nemotron"))


def test_trunk_and_head_compute_what_the_reference_does(case: Case) -> None:
    """Within the bound, and no mutant is."""
    assert_numbers(case)


@pytest.mark.parametrize("depth", range(1, 6))
def test_drafting_changes_neither_text_nor_state(case: Case, depth: int) -> None:
    """At every depth, wherever a draft goes wrong."""
    assert_text(case, depth)
