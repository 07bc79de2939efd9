"""Packed matrices are read by their shapes; names and settings only decide between what is left."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

from mtplx.errors import CheckpointError, UnsupportedTensorError
from mtplx.models.quantisation import (
    AFFINE,
    WITH_BYTE_SCALES,
    PackedShape,
    Packing,
    Stated,
    packing_of,
    quantise_modules,
    stated_packings,
)

WIDTH = 256
MIXED = {
    "layers.0.q_proj": Packing(3, 64),
    "layers.0.up_proj": Packing(4, 32),
    "layers.1.q_proj": Packing(6, 64),
    "layers.1.up_proj": Packing(8, 32),
    "embed": Packing(8, 64),
    "lm_head": Packing(4, 128),
    "mtp.fc": Packing(4, 32, "mxfp4"),
    "mtp.up_proj": Packing(8, 32, "mxfp8"),
    "mtp.down_proj": Packing(4, 16, "nvfp4"),
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # mlx has no types here
        self.q_proj = nn.Linear(WIDTH, 8, bias=False)
        self.up_proj = nn.Linear(WIDTH, 16, bias=False)
        self.norm = nn.RMSNorm(WIDTH)


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # mlx has no types here
        self.fc, self.up_proj, self.down_proj, self.dense = (
            nn.Linear(WIDTH, 8, bias=False) for _ in range(4)
        )


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # mlx has no types here
        self.embed = nn.Embedding(32, WIDTH)
        self.layers = [Block(), Block()]
        self.lm_head = nn.Linear(WIDTH, 32, bias=False)
        self.mtp = Head()


def parameters(model: Any) -> dict[str, mx.array]:
    return dict(tree_flatten(model.parameters()))


def pack(matrix: mx.array, packing: Packing) -> tuple[mx.array, ...]:
    return tuple(mx.quantize(matrix, packing.group_size, packing.bits, packing.mode))


def dequantised(
    codes: mx.array, scales: mx.array, biases: mx.array | None, packing: Packing
) -> mx.array:
    return mx.dequantize(codes, scales, biases, packing.group_size, packing.bits, packing.mode)


def packed(source: Tiny) -> dict[str, mx.array]:
    """The tensors of `source`, its matrices packed as MIXED says."""
    weights = parameters(source)
    for path, packing in MIXED.items():
        matrix = weights.pop(f"{path}.weight")
        parts = pack(matrix, packing)
        names = ("weight", "scales", "biases")
        weights |= {f"{path}.{name}": part for name, part in zip(names, parts, strict=False)}
    return weights


def quantised(weights: dict[str, mx.array], config: dict[str, Any]) -> Any:
    model = Tiny()
    quantise_modules(model, weights, config)
    model.load_weights(list(weights.items()))
    return model


def settings(**by_path: dict[str, int]) -> dict[str, Any]:
    return {"quantization": {"bits": 4, "group_size": 64, **by_path}}


RENAMED = {
    f"language_model.model.{path}": {"bits": packing.bits, "group_size": packing.group_size}
    for path, packing in MIXED.items()
}
WRONG = {path: {"bits": 2, "group_size": 128} for path in MIXED}


@pytest.mark.parametrize(
    "config",
    [settings(), settings(**RENAMED), settings(**WRONG), {}],
    ids=["no layers named", "names with another prefix", "every layer wrong", "nothing"],
)
def test_mixed_layers_load_whatever_the_settings_say(config: dict[str, Any]) -> None:
    """Each matrix dequantises to what it was packed from, as MLX itself dequantises it."""
    mx.random.seed(5)
    source = Tiny()
    model = quantised(packed(source), config)
    modules = dict(model.named_modules())
    originals = parameters(source)
    for path, packing in MIXED.items():
        module = modules[path]
        assert (module.bits, module.group_size, module.mode) == (
            packing.bits,
            packing.group_size,
            packing.mode,
        )
        held = dequantised(module.weight, module.scales, module.get("biases"), packing)
        codes, scales, *biases = pack(originals[f"{path}.weight"], packing)
        expected = dequantised(codes, scales, biases[0] if biases else None, packing)
        assert mx.array_equal(held, expected)
        assert mx.abs(held - originals[f"{path}.weight"]).max() < 0.1
    assert isinstance(modules["mtp.dense"], nn.Linear)
    assert mx.array_equal(model.mtp.dense.weight, source.mtp.dense.weight)


@pytest.mark.parametrize("packing", [*AFFINE, *WITH_BYTE_SCALES], ids=str)
@pytest.mark.parametrize("width", [128, 384, 4096])
def test_shapes_and_width_leave_one_packing(packing: Packing, width: int) -> None:
    """For every packing of MLX, without a word of configuration."""
    shape = PackedShape(
        "up_proj",
        width * packing.bits // 32,
        width // packing.group_size,
        packing.mode != "affine",
        width,
    )
    assert packing_of(shape, Stated()) == packing


FOUR_OR_EIGHT = PackedShape("model.layers.0.up_proj", 32, 4, has_byte_scales=False)


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        (Stated(Packing(4, 64)), Packing(4, 64)),
        (Stated(Packing(4, 64), {"layers.0.up_proj": Packing(8, 32)}), Packing(8, 32)),
        (Stated(None, {"language_model.model.layers.0.up_proj": Packing(2, 128)}), Packing(2, 128)),
    ],
)
def test_the_configuration_decides_where_shapes_leave_several(
    stated: Stated, expected: Packing
) -> None:
    """Its word for the matrix, under whatever prefix, before its word for all."""
    assert packing_of(FOUR_OR_EIGHT, stated) == expected


@pytest.mark.parametrize(
    "stated",
    [
        Stated(),
        Stated(Packing(3, 64)),
        Stated(Packing(4, 64), {"0.up_proj": Packing(8, 32), "up_proj": Packing(2, 128)}),
    ],
    ids=["says nothing", "contradicts", "says two things"],
)
def test_what_nothing_decides_is_told_by_name(stated: Stated) -> None:
    """The matrix, what it may be, and where to state it."""
    with pytest.raises(CheckpointError, match=r"layers\.0\.up_proj may be .*8 bits.*quantization"):
        packing_of(FOUR_OR_EIGHT, stated)


def test_a_packing_that_mlx_has_not_is_told_by_name() -> None:
    """Such as one scale for a whole row."""
    with pytest.raises(UnsupportedTensorError, match=r"fc is packed in rows of 256 weights"):
        packing_of(PackedShape("mtp.fc", 32, 1, has_byte_scales=False, width=256), Stated())


def without(name: str) -> dict[str, mx.array]:
    return {key: value for key, value in packed(Tiny()).items() if key != name}


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        (without("lm_head.biases"), r"lm_head has no biases"),
        (without("lm_head.weight"), r"lm_head\.weight is missing"),
        (without("") | {"mtp.fc.biases": mx.zeros(1)}, r"mtp\.fc has biases"),
        (without("") | {"lm_head.weight": mx.zeros((32, WIDTH))}, r"lm_head\.weight is .*float32"),
        (without("") | {"absent.scales": mx.zeros(1)}, r"absent\.scales belongs to no matrix"),
        (without("") | {"lm_head.global_scale": mx.zeros(1)}, r"lm_head\.global_scale"),
    ],
)
def test_tensors_that_do_not_belong_together_are_told_by_name(
    weights: dict[str, mx.array], told: str
) -> None:
    """A missing or a foreign part of a packed matrix stops before anything is computed."""
    with pytest.raises(UnsupportedTensorError, match=told):
        quantise_modules(Tiny(), weights, settings())


def test_sections_of_other_programs_are_not_taken_for_packings() -> None:
    """`quantization_config` of FP8 and GPTQ checkpoints says nothing about MLX's packings."""
    assert stated_packings({"quantization_config": {"quant_method": "fp8"}}) == Stated()
    inner = {"text_config": settings(lm_head={"bits": 8, "group_size": 32})}
    assert stated_packings(inner) == Stated(Packing(4, 64), {"lm_head": Packing(8, 32)})
