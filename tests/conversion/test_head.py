"""A converted checkpoint brings the MTP head of the original along."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import pytest

from mtplx.conversion.convert import Conversion, convert
from mtplx.conversion.plan import Options
from mtplx.loading.native_folder import FolderModel, folder_model
from mtplx.models.quantisation import Packing
from tests.families import qwen, test_bailing, test_deepseek, test_fp8, test_mimo
from tests.families.assembled import Recipe, assemble, write_checkpoint
from tests.families.checkpoints import read, write

RECIPES = {
    "qwen3_5": qwen.QWEN3_5,
    "qwen3_5_moe": qwen.QWEN3_5_MOE,
    "qwen3_next": qwen.QWEN3_NEXT,
    "deepseek_v3": test_deepseek.RECIPE,
    "mimo": test_mimo.RECIPE,
    "bailing_hybrid": test_bailing.RECIPE,
}
TOKENS = mx.array([5, 6, 7, 8, 9])


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a checkpoint computes for `TOKENS`: logits of the trunk and of the head's modules."""

    trunk: mx.array
    head: list[mx.array]


@pytest.fixture(scope="module", params=RECIPES)
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint as its publishers would have it."""
    recipe: Recipe = RECIPES[request.param]
    return write_checkpoint(assemble(recipe), tmp_path_factory.mktemp(request.param) / "original")


def made(folder: Path, out: Path, options: Options) -> Conversion:
    return convert(folder, out, options, tell=lambda *told: None)


def numbers(model: FolderModel) -> Numbers:
    target = model.target
    assert model.head is not None, model.no_head_reason
    head = model.head.head
    before = target.forward(TOKENS, target.make_cache())
    after = target.normalise(before)
    hidden = before if head.hidden_stage == "before_norm" else after
    rows = []
    for module, cache in enumerate(head.make_cache()):
        made = head.run(module, TOKENS, hidden, cache)
        rows.append(head.logits(module, made.output))
    return Numbers(target.logits(after), rows)


def assert_same(one: Numbers, other: Numbers, close: Callable[..., mx.array]) -> None:
    assert len(one.head) == len(other.head) > 0
    for found, expected in zip([one.trunk, *one.head], [other.trunk, *other.head], strict=True):
        assert close(found, expected).item()


def test_unpacked_trunk_and_head_compute_the_same(original: Path, tmp_path: Path) -> None:
    """Bit for bit; also after a second conversion, which shifts no norm again."""
    expected = numbers(folder_model(original))
    result = made(original, tmp_path / "once", Options())
    assert result.no_head_reason is None
    assert_same(numbers(folder_model(tmp_path / "once")), expected, mx.array_equal)
    made(tmp_path / "once", tmp_path / "twice", Options())
    assert_same(numbers(folder_model(tmp_path / "twice")), expected, mx.array_equal)


def test_mlx_lm_reads_the_trunk(original: Path, tmp_path: Path) -> None:
    """The head lies where its loader does not meet it."""
    from mlx_lm.utils import load_model

    made(original, tmp_path / "out", Options())
    model, _ = load_model(tmp_path / "out")
    expected = numbers(folder_model(original)).trunk
    found = model(TOKENS[None])[0]
    assert mx.abs(found - expected).max() < 2e-5 * mx.abs(expected).max()


def test_a_packed_head_is_packed_by_groups(original: Path, tmp_path: Path) -> None:
    """With bits of its own, and as near to the original as they allow."""
    result = made(original, tmp_path / "out", Options(bits=4, group_size=32, head_bits=8))
    assert Packing(4, 32) in result.trunk
    assert Packing(8, 32) in result.head
    assert result.head[Packing(8, 32)].relative < 0.01 < result.trunk[Packing(4, 32)].relative
    held = mx.load(str(tmp_path / "out" / "mtp.safetensors"))
    assert isinstance(held, dict)
    scales = held["mtp.parts.0.projection.scales"]
    assert scales.shape[-1] == 2 * 64 // 32
    model = folder_model(tmp_path / "out")
    assert model.head is not None, model.no_head_reason
    assert all(mx.isfinite(rows).all().item() for rows in numbers(model).head)


def test_eight_bits_are_near_the_original(original: Path, tmp_path: Path) -> None:
    """Trunk and head alike: what is packed is what it was packed from."""
    made(original, tmp_path / "out", Options(bits=8, group_size=32))
    found, expected = numbers(folder_model(tmp_path / "out")), numbers(folder_model(original))
    for one, other in zip(
        [found.trunk, *found.head], [expected.trunk, *expected.head], strict=True
    ):
        assert mx.square(one - other).mean() < 0.01 * mx.square(other).mean()


def test_the_configuration_names_the_head(original: Path, tmp_path: Path) -> None:
    """Its family and its modules, and the bits of its matrices where they are not the trunk's."""
    result = made(original, tmp_path / "out", Options(bits=4, group_size=32))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["mtplx"]["head"] == {"family": result.family, "modules": 1}
    own = {"bits": 8, "group_size": 32, "mode": "affine"}
    assert config["quantization"]["mtp.parts.0.projection"] == own
    listed = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert listed["weight_map"]["mtp.parts.0.projection.weight"] == "mtp.safetensors"


def test_what_a_trunk_packs_otherwise_its_head_does_too(tmp_path: Path) -> None:
    """mlx-lm has 8 bits for the routers of these experts, whatever the others get."""
    folder = write_checkpoint(assemble(qwen.QWEN3_5_MOE), tmp_path / "model")
    made(folder, tmp_path / "out", Options(bits=4, group_size=32, head_bits=4))
    stated = json.loads((tmp_path / "out" / "config.json").read_text())["quantization"]
    routers = {path for path in stated if path.endswith(("mlp.gate", "mlp.shared_expert_gate"))}
    assert "mtp.parts.0.block.mlp.gate" in routers
    assert len(routers) == 2 * 4
    eight = {"bits": 8, "group_size": 64, "mode": "affine"}
    assert [stated[path] for path in routers] == [eight] * len(routers)
    held = mx.load(str(tmp_path / "out" / "mtp.safetensors"))
    assert isinstance(held, dict)
    assert held["mtp.parts.0.block.mlp.gate.scales"].shape == (6, 1)


def test_an_original_in_fp8_is_converted_as_what_it_stands_for(tmp_path: Path) -> None:
    """Trunk and head, bit for bit; its own packing is no longer spoken of."""
    original = write_checkpoint(assemble(test_deepseek.RECIPE), tmp_path / "original")
    tensors, config = read(original)
    stated = {"quant_method": "fp8", "weight_block_size": [test_fp8.BLOCK, test_fp8.BLOCK]}
    small = {"model.safetensors": test_fp8.written(tensors)[0]}
    fp8 = write(tmp_path / "fp8", {**config, "quantization_config": stated}, small)
    made(fp8, tmp_path / "out", Options())
    expected = numbers(folder_model(fp8))
    assert_same(numbers(folder_model(tmp_path / "out")), expected, mx.array_equal)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert "quantization_config" not in config
    result = made(fp8, tmp_path / "packed", Options(bits=6, group_size=32))
    assert result.trunk.keys() == {None, Packing(6, 32)}
