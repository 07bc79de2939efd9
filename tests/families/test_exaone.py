"""K-EXAONE: windows in the trunk, a dense block with global attention behind it."""

import pytest

from tests.families.assembled import TRUNK, Layout, Recipe
from tests.families.proofs import Case, assert_numbers, assert_text, made

RECIPE = Recipe(
    model="ExaoneMoeForCausalLM",
    config={
        **TRUNK,
        "head_dim": 16,
        "moe_intermediate_size": 32,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": 16,
        "sliding_window_pattern": 3,
    },
    layout=Layout(
        embedding_norm="mtp.pre_fc_norm_embedding",
        hidden_norm="mtp.pre_fc_norm_hidden",
        projection="mtp.fc",
        output_norm="mtp.norm",
        block="mtp.layers.{i}.",
    ),
    block={
        "mlp_layer_types": ["dense"],
        # Only layers with a window have positions in transformers; this one never closes.
        "layer_types": ["sliding_attention"],
        "sliding_window": 512,
    },
    saved={"num_nextn_predict_layers": 1},
)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return made(RECIPE, tmp_path_factory.mktemp("exaone"))


def test_trunk_and_head_compute_what_the_reference_does(case: Case) -> None:
    """Within the bound, and no mutant is."""
    assert_numbers(case)


@pytest.mark.parametrize("depth", range(1, 6))
def test_drafting_changes_neither_text_nor_state(case: Case, depth: int) -> None:
    """At every depth, wherever a draft goes wrong, across the window's edge."""
    assert_text(case, depth)
