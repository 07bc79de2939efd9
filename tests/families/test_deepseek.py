"""DeepSeek-V3: latent attention, experts, and a module behind the last layer."""

from pathlib import Path

import pytest

from mtplx.loading.native_folder import folder_model
from tests.families.assembled import EXPERTS, LATENT, TRUNK, Layout, Recipe
from tests.families.checkpoints import read, write
from tests.families.proofs import BOUND, Case, assert_numbers, assert_text, made
from tests.families.references import mtp_model_deviation

LAYER = "model.layers.{layer}."
LAYOUT = Layout(
    embedding_norm=LAYER + "enorm",
    hidden_norm=LAYER + "hnorm",
    projection=LAYER + "eh_proj",
    output_norm=LAYER + "shared_head.norm",
    block=LAYER,
    copies=(LAYER + "embed_tokens", LAYER + "shared_head.head"),
)
RECIPE = Recipe(
    model="DeepseekV3ForCausalLM",
    config={**TRUNK, **LATENT, **EXPERTS},
    layout=LAYOUT,
    block={"first_k_dense_replace": 0},
)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return made(RECIPE, tmp_path_factory.mktemp("deepseek"))


def test_trunk_and_head_compute_what_the_reference_does(case: Case) -> None:
    """Within the bound, and no mutant is."""
    assert_numbers(case)


@pytest.mark.parametrize("depth", range(1, 6))
def test_drafting_changes_neither_text_nor_state(case: Case, depth: int) -> None:
    """At every depth, wherever a draft goes wrong."""
    assert_text(case, depth)


def test_the_reference_is_the_one_that_transformers_has(case: Case) -> None:
    """The head assembled here gives the logits of MtpModel on the same checkpoint."""
    assert mtp_model_deviation(case, "DeepseekV3ForCausalLM") <= BOUND


@pytest.mark.parametrize("kind", ["kimi_k2", "joyai_llm_flash"])
def test_models_that_took_over_the_layout_bring_their_head_too(
    kind: str, case: Case, tmp_path: Path
) -> None:
    """By the model type in config.json alone."""
    tensors, config = read(case.folder)
    named = write(tmp_path, {**config, "model_type": kind}, {"model.safetensors": tensors})
    model = folder_model(named)
    assert model.head is not None
    assert model.head.head.family.name == "DeepSeek-V3"
