"""Step 3.5: three chained modules with windows and output heads of their own, norms around zero."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
import torch

from tests.families.assembled import TRUNK, VOCAB_SIZE, Formula, Layout, Recipe, renamed
from tests.families.proofs import Case, assert_numbers, assert_text, made

LAYER = "model.layers.{layer}."
FULL, SLIDING = "full_attention", "sliding_attention"


class StepModel(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
    """transformers' text model of Step 3.7, which is Step 3.5's, with an output head."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        from transformers.models.step3p7 import modeling_step3p7 as step

        super().__init__()
        self.config = step.Step3p7TextConfig(**config)
        self.model = step.Step3p7TextModel(self.config)
        self.lm_head = torch.nn.Linear(self.config.hidden_size, VOCAB_SIZE, bias=False)

    def forward(self, token_ids: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.lm_head(self.model(token_ids).last_hidden_state))

    def get_input_embeddings(self) -> Any:
        return self.model.embed_tokens

    def save_pretrained(self, folder: Path) -> None:
        """Tensors by the names of the publishers; config.json is the recipe's alone."""
        folder.mkdir(exist_ok=True)
        tensors: dict[str, torch.Tensor] = {}
        for name, tensor in self.state_dict().items():
            before, found, _ = name.partition("mlp.experts.gate_up_proj")
            if found:
                gate, up = tensor.chunk(2, dim=1)
                tensors |= {
                    f"{before}moe.gate_proj.weight": gate,
                    f"{before}moe.up_proj.weight": up,
                }
                continue
            tensors[renamed(name, NAMES)] = tensor
        arrays = {name: mx.array(tensor.numpy()) for name, tensor in tensors.items()}
        mx.save_safetensors(str(folder / "model.safetensors"), arrays)
        (folder / "config.json").write_text("{}")


NAMES = (
    ("mlp.gate.weight", "moe.gate.weight"),
    ("mlp.gate.e_score_correction_bias", "moe.router_bias"),
    ("mlp.experts.down_proj", "moe.down_proj.weight"),
    ("mlp.shared_experts.", "share_expert."),
)
SIZES = {key: value for key, value in TRUNK.items() if not key.endswith("_token_id")}
RECIPE = Recipe(
    model=StepModel,
    config={
        **SIZES,
        "head_dim": 16,
        "num_sliding_attention_heads": 8,
        "layer_types": [FULL, SLIDING, FULL],
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "sliding_window": 16,
        "rope_theta": [5e6, 1e4, 5e6],
        "partial_rotary_factors": [0.5, 1.0, 0.5],
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "share_expert_dim": 32,
        "moe_router_scaling_factor": 3.0,
    },
    layout=Layout(
        embedding_norm=LAYER + "enorm",
        hidden_norm=LAYER + "hnorm",
        projection=LAYER + "eh_proj",
        output_norm=LAYER + "transformer.shared_head.norm",
        output=LAYER + "transformer.shared_head.output",
        block=LAYER,
    ),
    formula=Formula(before_norm=True, recycles_before_norm=True, zero_centred=True),
    block={
        "layer_types": [SLIDING],
        "mlp_layer_types": ["dense"],
        "rope_theta": [1e4],
        "partial_rotary_factors": [1.0],
    },
    num_modules=3,
    saved={
        **SIZES,
        "model_type": "step3p5",
        "num_nextn_predict_layers": 3,
        "head_dim": 16,
        "num_attention_groups": 2,
        "attention_other_setting": {"num_attention_heads": 8, "num_attention_groups": 2},
        "layer_types": [FULL, SLIDING, FULL, SLIDING, SLIDING, SLIDING],
        "moe_layers_enum": "1,2",
        "sliding_window": 16,
        "rope_theta": [5e6, 1e4, 5e6, 1e4, 1e4, 1e4],
        "partial_rotary_factors": [0.5, 1.0, 0.5, 1.0, 1.0, 1.0],
        "moe_num_experts": 8,
        "moe_top_k": 2,
        "moe_intermediate_size": 32,
        "share_expert_dim": 32,
        "moe_router_scaling_factor": 3.0,
    },
)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return made(RECIPE, tmp_path_factory.mktemp("step"))


def test_trunk_and_head_compute_what_the_reference_does(case: Case) -> None:
    """Within the bound, and no mutant is."""
    assert_numbers(case)


@pytest.mark.parametrize("depth", range(1, 6))
def test_drafting_changes_neither_text_nor_state(case: Case, depth: int) -> None:
    """At every depth, wherever a draft goes wrong, across the window's edge."""
    assert_text(case, depth)
