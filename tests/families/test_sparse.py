"""DeepSeek-V3.2 and GLM-5: latent attention to what an index selects, in trunk and head."""

import pytest

from tests.families.assembled import EXPERTS, LATENT, TRUNK, Recipe
from tests.families.proofs import Case, assert_numbers, assert_text, made
from tests.families.test_deepseek import LAYOUT

CONFIG = {
    **TRUNK,
    **LATENT,
    **EXPERTS,
    "index_topk": 12,
    "index_head_dim": 32,
    "index_n_heads": 16,  # with few, scores are often zero in all of them and rank as they like
}
RECIPES = {
    kind: Recipe(
        model=kind,
        config=CONFIG,
        layout=LAYOUT,
        block={"mlp_layer_types": ["sparse"]},
        saved={"num_nextn_predict_layers": 1},
    )
    for kind in ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM")
}


@pytest.fixture(scope="module", params=RECIPES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return made(RECIPES[request.param], tmp_path_factory.mktemp("sparse"))


def test_trunk_and_head_compute_what_the_reference_does(case: Case) -> None:
    """Within the bound, and no mutant is."""
    assert_numbers(case)


@pytest.mark.parametrize("depth", range(1, 6))
def test_drafting_changes_neither_text_nor_state(case: Case, depth: int) -> None:
    """At every depth, wherever a draft goes wrong, with far more tokens than are selected."""
    assert_text(case, depth)
