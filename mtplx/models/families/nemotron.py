"""Nemotron 3 (`nemotron_h`): one module of two sub-layers, attention and then latent experts.

The norms that join the inputs and the projection lie in the first sub-layer, the output norm in
the last.
"""

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mtplx.models.family import BlockPlan, BuiltBlock, Config, MtpFamily, OwnNames, Tensors
from mtplx.models.mlx_lm_model import dense_model, sanitised
from mtplx.models.undo import layer_caches
from mtplx.speculation import LayerCache

PATTERN = ["*", "E"]  # attention, experts


def known_fields(config: Config) -> Config:
    """How many layers there are, where only their kinds are listed."""
    kinds = config.get("hybrid_override_pattern") or config.get("layers_block_type") or ()
    return {"num_hidden_layers": len(kinds), **config}


def two_sub_layers(plan: BlockPlan) -> BuiltBlock:
    """Two layers of mlx-lm's, of which the first keeps state."""
    from mlx_lm.models.base import create_attention_mask

    own = {"hybrid_override_pattern": PATTERN, "layers_block_type": None, "layer_types": None}
    model = dense_model({**plan.config, **own, "model_type": plan.family.model_types[0]})
    holder: Any = nn.Module()
    holder.layers = model.layers
    attention, experts = model.layers

    def run(x: mx.array, cache: list[LayerCache]) -> mx.array:
        mask = create_attention_mask(x, cache[0], return_array=True)
        result: mx.array = experts(attention(x, mask=mask, cache=cache[0]))
        return result

    def sanitize(tensors: Tensors) -> Tensors:
        named = {f"backbone.{name}": array for name, array in tensors.items()}
        found = sanitised(model, named)
        return {name.removeprefix("backbone."): array for name, array in found.items()}

    return BuiltBlock(holder, run, lambda: layer_caches(model), sanitize)


NEMOTRON_H = MtpFamily(
    name="Nemotron 3",
    model_types=("nemotron_h",),
    roots=("mtp.",),
    names=OwnNames(
        embedding_norm="mtp.layers.0.enorm",
        hidden_norm="mtp.layers.0.hnorm",
        projection="mtp.layers.0.eh_proj",
        output_norm="mtp.layers.1.final_layernorm",
    ),
    block="mtp.",
    count_fields=("num_nextn_predict_layers",),
    hidden_stage="after_norm",
    eps_field="layer_norm_epsilon",
    adapt_config=known_fields,
    build_block=two_sub_layers,
    reference="transformers NemotronHForCausalLM, head from the published formula",
    tested="tests/families/test_nemotron.py",
)
FAMILIES = (NEMOTRON_H,)
