"""MiMo-V2-Flash: three modules with windows and sinks, each fed by the trunk."""

import pytest

from tests.families.assembled import EXPERTS, TRUNK, Formula, Layout, Recipe
from tests.families.proofs import Case, assert_numbers, assert_text, made

MODULE = "model.mtp.layers.{i}."
RECIPE = Recipe(
    model="MiMoV2FlashForCausalLM",
    config={**TRUNK, **EXPERTS, "head_dim": 32, "v_head_dim": 16, "sliding_window": 8},
    layout=Layout(
        embedding_norm=MODULE + "enorm",
        hidden_norm=MODULE + "hnorm",
        projection=MODULE + "eh_proj",
        output_norm=MODULE + "final_layernorm",
        block=MODULE,
        block_renames=(("post_attention_layernorm", "pre_mlp_layernorm"),),
    ),
    formula=Formula(chained=False),
    block={"layer_types": ["sliding_attention"], "mlp_layer_types": ["dense"]},
    num_modules=3,
    saved={
        "hybrid_layer_pattern": [0, 1, 1],
        "moe_layer_freq": [0, 1, 1],
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
        "sliding_window_size": 8,
        "n_shared_experts": None,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "layernorm_epsilon": 1e-6,
        "rope_theta": 5e6,
        "swa_rope_theta": 1e4,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 4,
        "swa_head_dim": 32,
        "swa_v_head_dim": 16,
        "partial_rotary_factor": 0.334,
    },
)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return made(RECIPE, tmp_path_factory.mktemp("mimo_v2"))


def test_trunk_and_head_compute_what_the_reference_does(case: Case) -> None:
    """Within the bound, and no mutant is."""
    assert_numbers(case)


@pytest.mark.parametrize("depth", range(1, 6))
def test_drafting_changes_neither_text_nor_state(case: Case, depth: int) -> None:
    """At every depth, wherever a draft goes wrong, across the window's edge."""
    assert_text(case, depth)
