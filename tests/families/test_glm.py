"""GLM-4.5 and GLM-4.7-Flash: DeepSeek-V3's layout around grouped-query and latent attention."""

import pytest

from tests.families.assembled import EXPERTS, LATENT, TRUNK, Recipe
from tests.families.proofs import BOUND, Case, assert_numbers, assert_text, made
from tests.families.references import mtp_model_deviation
from tests.families.test_deepseek import LAYOUT

RECIPES = {
    "glm4_moe": Recipe(
        model="Glm4MoeForCausalLM",
        config={**TRUNK, **EXPERTS, "head_dim": 16, "use_qk_norm": True, "attention_bias": True},
        layout=LAYOUT,
        block={"first_k_dense_replace": 0},
    ),
    "glm4_moe_lite": Recipe(
        model="Glm4MoeLiteForCausalLM",
        config={**TRUNK, **LATENT, **EXPERTS},
        layout=LAYOUT,
        block={"mlp_layer_types": ["sparse"]},
    ),
}


@pytest.fixture(scope="module", params=RECIPES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return made(RECIPES[request.param], tmp_path_factory.mktemp(request.param))


def test_trunk_and_head_compute_what_the_reference_does(case: Case) -> None:
    """Within the bound, and no mutant is."""
    assert_numbers(case)


@pytest.mark.parametrize("depth", range(1, 6))
def test_drafting_changes_neither_text_nor_state(case: Case, depth: int) -> None:
    """At every depth, wherever a draft goes wrong."""
    assert_text(case, depth)


@pytest.mark.parametrize("case", ["glm4_moe"], indirect=True)
def test_the_reference_is_the_one_that_transformers_has(case: Case) -> None:
    """The head assembled here gives the logits of MtpModel on the same checkpoint."""
    assert mtp_model_deviation(case, "Glm4MoeForCausalLM") <= BOUND
