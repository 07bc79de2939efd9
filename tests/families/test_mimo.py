"""MiMo-7B: hidden state first, and no norm on what is handed on."""

import pytest

from tests.families.assembled import TRUNK, Formula, Layout, Recipe
from tests.families.proofs import Case, assert_numbers, assert_text, made

MODULE = "model.mtp_layers.{i}."
RECIPE = Recipe(
    model="Qwen2ForCausalLM",  # the trunk's kind; transformers has no MiMo
    config=TRUNK,
    layout=Layout(
        embedding_norm=MODULE + "token_layernorm",
        hidden_norm=MODULE + "hidden_layernorm",
        projection=MODULE + "input_proj",
        output_norm=MODULE + "final_layernorm",
        block=MODULE,
    ),
    formula=Formula(hidden_first=True, before_norm=True, recycles_before_norm=True),
    saved={"model_type": "mimo", "num_nextn_predict_layers": 1},
)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return made(RECIPE, tmp_path_factory.mktemp("mimo"))


def test_trunk_and_head_compute_what_the_reference_does(case: Case) -> None:
    """Within the bound, and no mutant is."""
    assert_numbers(case)


@pytest.mark.parametrize("depth", range(1, 6))
def test_drafting_changes_neither_text_nor_state(case: Case, depth: int) -> None:
    """At every depth, wherever a draft goes wrong."""
    assert_text(case, depth)
