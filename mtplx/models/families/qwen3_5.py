"""Qwen 3.5, 3.6 and 3.8, dense and of experts: gated delta layers between layers of attention.

The head is one layer of full attention. Its norms are stored as w and used as 1 + w, as the
trunk's are; a converted checkpoint has 1 + w in its place. Sources: the weight names of the
published checkpoints; the head's arithmetic as vLLM and SGLang run it, with the hidden state after
the final norm.
"""

import re
from dataclasses import replace

import mlx.core as mx

from mtplx.errors import UnsupportedTensorError
from mtplx.models.family import Config, MtpFamily, OwnNames, Tensors

NAMES = OwnNames(
    embedding_norm="mtp.pre_fc_norm_embedding",
    hidden_norm="mtp.pre_fc_norm_hidden",
    projection="mtp.fc",
    output_norm="mtp.norm",
)
_EXPERT = re.compile(r"(.*\.mlp)\.experts\.(\d+)\.(gate_proj|up_proj|down_proj)\.(\w+)$")
_FUSED = re.compile(r"(.*\.mlp)\.experts\.(gate_up_proj|down_proj)(\.\w+)?$")


def trunk_is_raw(tensors: Tensors) -> bool | None:
    """By the convolutions of the gated delta layers: [C, 1, taps] in PyTorch's order of axes,
    [C, taps, 1] in MLX's."""
    for name, array in tensors.items():
        if name.endswith("conv1d.weight") and array.ndim == 3:
            return array.shape[-1] != 1
    return None


def with_interval(config: Config) -> Config:
    """With the distance between layers of full attention, which is what mlx-lm goes by, as the
    list of layer types has it.

    Raises UnsupportedTensorError where they do not stand at regular distances.
    """
    kinds = config.get("layer_types")
    if not kinds or "full_attention" not in kinds:
        return config
    interval = kinds.index("full_attention") + 1
    regular = [
        "linear_attention" if (layer + 1) % interval else "full_attention"
        for layer in range(len(kinds))
    ]
    if list(kinds) != regular:
        raise UnsupportedTensorError(
            "config.json's layer_types put full attention at irregular distances, which no model "
            "of mlx-lm's has."
        )
    return {**config, "full_attention_interval": interval}


def full_attention(config: Config, index: int) -> Config:
    """Every layer is one of attention, under which layer 0 is a head's."""
    return {**config, "full_attention_interval": 1}


def stacked_experts(tensors: Tensors, config: Config) -> Tensors:
    """Experts on their own, or fused as [E, 2 M, D], as the stacks that mlx-lm's layers hold."""
    kept: Tensors = {}
    parts: dict[str, dict[int, mx.array]] = {}
    for name, array in tensors.items():
        if found := _EXPERT.match(name):
            stack = f"{found[1]}.switch_mlp.{found[3]}.{found[4]}"
            parts.setdefault(stack, {})[int(found[2])] = array
        elif (found := _FUSED.match(name)) and found[2] == "gate_up_proj":
            gate, up = mx.split(array, 2, axis=-2)
            kept[f"{found[1]}.switch_mlp.gate_proj{found[3] or '.weight'}"] = gate
            kept[f"{found[1]}.switch_mlp.up_proj{found[3] or '.weight'}"] = up
        elif found:
            kept[f"{found[1]}.switch_mlp.down_proj{found[3] or '.weight'}"] = array
        else:
            kept[name] = array
    for stack, experts in parts.items():
        kept[stack] = mx.stack([experts[index] for index in sorted(experts)])
    return kept


QWEN3_5 = MtpFamily(
    name="Qwen 3.5 / 3.6 / 3.8",
    model_types=("qwen3_5", "qwen3_5_text"),
    roots=("mtp.", "model.mtp."),
    names=NAMES,
    block="mtp.layers.{i}.",
    count_fields=("mtp_num_hidden_layers", "num_nextn_predict_layers"),
    hidden_stage="after_norm",
    zero_centred=True,
    is_raw=trunk_is_raw,
    adapt_config=with_interval,
    block_config=full_attention,
    reference="a head of transformers' Qwen 3.5 layer in torch",
    tested="tests/families/test_qwen3_5.py",
)

QWEN3_5_MOE = replace(
    QWEN3_5,
    name="Qwen 3.5 / 3.6 / 3.8 MoE",
    model_types=("qwen3_5_moe", "qwen3_5_moe_text"),
    prepare=stacked_experts,
    reference="a head of transformers' Qwen 3.5 MoE layer in torch",
    tested="tests/families/test_qwen3_5_moe.py",
)

FAMILIES = (QWEN3_5, QWEN3_5_MOE)
