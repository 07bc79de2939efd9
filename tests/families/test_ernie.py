"""ERNIE 4.5: a dense block, and the trunk's final norm behind it."""

import pytest

from tests.families.assembled import TRUNK, Formula, Layout, Recipe
from tests.families.proofs import Case, assert_numbers, assert_text, made

RECIPE = Recipe(
    model="Ernie4_5_MoeForCausalLM",
    config={
        **TRUNK,
        "moe_intermediate_size": 32,
        "moe_k": 2,
        "moe_num_experts": 8,
    },
    layout=Layout(
        embedding_norm="model.mtp_emb_norm.{i}",
        hidden_norm="model.mtp_hidden_norm.{i}",
        projection="model.mtp_linear_proj.{i}",
        output_norm=None,
        block="model.mtp_block.{i}.",
    ),
    formula=Formula(before_norm=True, recycles_before_norm=True),
    block={"moe_layer_start_index": 5},
    zeroed=("e_score_correction_bias",),
    saved={"num_nextn_predict_layers": 1},
)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return made(RECIPE, tmp_path_factory.mktemp("ernie"))


def test_trunk_and_head_compute_what_the_reference_does(case: Case) -> None:
    """Within the bound, and no mutant is."""
    assert_numbers(case)


@pytest.mark.parametrize("depth", range(1, 6))
def test_drafting_changes_neither_text_nor_state(case: Case, depth: int) -> None:
    """At every depth, wherever a draft goes wrong."""
    assert_text(case, depth)
