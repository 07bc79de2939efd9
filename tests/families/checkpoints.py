"""One tiny checkpoint on disk in the layouts that there are: published or converted, in one file or
in several, the head among the model's tensors or in a file of its own.

What a conversion does to tensors is written out here, and not taken from the product.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx

Tensors = dict[str, mx.array]
PUBLISHED = {"format": "pt"}
CONVERTED = {"format": "mlx"}


def read(folder: Path) -> tuple[Tensors, dict[str, Any]]:
    """The tensors and the configuration of a folder of one file."""
    tensors: Any = mx.load(str(folder / "model.safetensors"))
    return dict(tensors), json.loads((folder / "config.json").read_text())


def write(
    folder: Path,
    config: Mapping[str, Any],
    files: Mapping[str, Tensors],
    metadata: Mapping[str, Mapping[str, str]] | Mapping[str, str] = PUBLISHED,
    *,
    indexed: tuple[str, ...] = (),
) -> Path:
    """A folder of these files. metadata: of all, or by file. indexed: those that an index lists."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name, tensors in files.items():
        own = metadata.get(name, {}) if any(key in files for key in metadata) else metadata
        mx.save_safetensors(str(folder / name), tensors, dict(own))  # type: ignore[arg-type]
    if indexed:
        listed = {tensor: name for name in indexed for tensor in files.get(name, {})}
        index = json.dumps({"metadata": {}, "weight_map": listed})
        (folder / "model.safetensors.index.json").write_text(index)
    return folder


def is_head(name: str) -> bool:
    return ".mtp." in f".{name}"


def parted(tensors: Tensors) -> tuple[Tensors, Tensors]:
    """The trunk's tensors and the head's."""
    trunk = {name: array for name, array in tensors.items() if not is_head(name)}
    return trunk, {name: array for name, array in tensors.items() if is_head(name)}


def converted(tensors: Tensors) -> Tensors:
    """Qwen tensors as conversions to MLX leave them: norms that are multiplied by as they are,
    the axes of convolutions in MLX's order, experts stacked, one prefix before everything."""
    made: Tensors = {}
    for name, array in stacked(tensors).items():
        is_gated = name.endswith("linear_attn.norm.weight")  # of another kind, stored as used
        is_shifted = "norm" in name and array.ndim == 1 and not is_gated
        used = array + 1 if is_shifted else array
        used = used.moveaxis(2, 1) if name.endswith("conv1d.weight") else used
        made[f"language_model.{name}"] = used
    return made


def stacked(tensors: Tensors) -> Tensors:
    """Experts, stored one by one, as stacks."""
    made, stacks = Tensors(), dict[str, dict[int, mx.array]]()
    for name, array in tensors.items():
        before, is_expert, after = name.partition(".mlp.experts.")
        if not is_expert:
            made[name] = array
            continue
        number, kind, _ = after.split(".")
        stacks.setdefault(f"{before}.mlp.switch_mlp.{kind}.weight", {})[int(number)] = array
    for name, experts in stacks.items():
        made[name] = mx.stack([experts[number] for number in sorted(experts)])
    return made


def fused(tensors: Tensors) -> Tensors:
    """Experts, stored one by one, as two arrays for all of them, gate and up in one."""
    made = {}
    for name, array in stacked(tensors).items():
        if name.endswith("switch_mlp.gate_proj.weight"):
            up = stacked(tensors)[name.replace("gate_proj", "up_proj")]
            place = name.replace("switch_mlp.gate_proj.weight", "experts.gate_up_proj")
            made[place] = mx.concatenate([array, up], axis=1)
        elif name.endswith("switch_mlp.down_proj.weight"):
            made[name.replace("switch_mlp.down_proj.weight", "experts.down_proj")] = array
        elif "switch_mlp" not in name:
            made[name] = array
    return made


def multimodal(tensors: Tensors, config: Mapping[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """As the text part of a model that also sees, with a tensor of what it sees by."""
    named = {
        name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name: x
        for name, x in tensors.items()
    }
    named["model.visual.patch_embed.proj.weight"] = mx.ones((4, 4))
    kind = str(config["model_type"]).removesuffix("_text")
    return named, {"model_type": kind, "text_config": dict(config), "vision_config": {"depth": 1}}


def renamed(tensors: Tensors, change: Callable[[str], str]) -> Tensors:
    return {change(name): array for name, array in tensors.items()}
