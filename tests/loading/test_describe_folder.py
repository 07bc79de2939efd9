"""A folder with an MTP head of its own, told from headers: what it is and what memory it takes."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from mtplx.checkpoints import MAX_CHECKPOINTS
from mtplx.conversion.convert import convert
from mtplx.conversion.plan import Options
from mtplx.loading.describe import describe
from mtplx.loading.native_folder import folder_model
from mtplx.models.drafter import HeadDrafter
from mtplx.state import DecodeState
from tests.families import qwen, test_deepseek, test_mimo
from tests.families.assembled import Recipe, assemble, write_checkpoint
from tests.families.checkpoints import read, write

RECIPES = {
    "qwen3_5": (qwen.QWEN3_5, "Qwen 3.5 / 3.6 / 3.8", "after_norm"),
    "qwen3_5_moe": (qwen.QWEN3_5_MOE, "Qwen 3.5 / 3.6 / 3.8 MoE", "after_norm"),
    "deepseek_v3": (test_deepseek.RECIPE, "DeepSeek-V3", "after_norm"),
    "mimo": (test_mimo.RECIPE, "MiMo", "before_norm"),
}


@pytest.fixture(scope="module", params=RECIPES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe: Recipe = RECIPES[request.param][0]
    return write_checkpoint(assemble(recipe), tmp_path_factory.mktemp("made") / request.param)


def qwen_folder(tmp_path: Path) -> Path:
    return write_checkpoint(assemble(qwen.QWEN3_5), tmp_path / "qwen")


def loaded_bytes(folder: Path) -> int:
    """Of every array of trunk and head."""
    model = folder_model(folder)
    assert model.head is not None
    trunk: Any = tree_flatten(model.target.model.parameters())
    # The norm is lifted out of the model.
    arrays = [*(array for _, array in trunk), model.target.final_norm.weight]
    return sum(array.nbytes for array in [*arrays, *model.head.head.arrays()])


def split_off(folder: Path, prefix: str) -> dict[str, mx.array]:
    """Take tensors out of a folder's only file; gives them."""
    file = folder / "model.safetensors"
    tensors = mx.load(str(file))
    assert isinstance(tensors, dict)
    mx.eval(tensors)
    taken = {name: array for name, array in tensors.items() if name.startswith(prefix)}
    rest = {name: array for name, array in tensors.items() if name not in taken}
    mx.save_safetensors(str(file), rest, {"format": "pt"})
    return taken


def test_family_head_and_stage_are_named(folder: Path) -> None:
    """With the bytes of the head, and the file that it lies in."""
    _, family, stage = RECIPES[folder.name]
    found = describe(folder)
    assert found.family == family
    assert found.native_head is not None
    assert (found.native_head.num_modules, found.native_head.hidden_stage) == (1, stage)
    assert found.native_head.files == (folder / "model.safetensors",)
    assert found.native_head.embedded
    assert found.no_head_reason is None


def test_bytes_are_those_of_the_loaded_model(folder: Path) -> None:
    """Of trunk, head and state: hybrids and latent attention keep less than keys and values."""
    need = describe(folder).need
    model = folder_model(folder)
    assert model.head is not None
    head = model.head.head
    trunk: Any = tree_flatten(model.target.model.parameters())
    own = sum(array.nbytes for array in head.arrays())
    norm = model.target.final_norm.weight.nbytes  # which is lifted out of the model
    assert need.weights_bytes == sum(array.nbytes for _, array in trunk) + norm
    assert need.head_bytes == own
    state = DecodeState(model.target, HeadDrafter(head))
    state.begin([1] * 257, drafting=True)  # 256 rows, the step by which caches grow
    assert need.cache_bytes_per_token is not None
    rows = 256 * need.cache_bytes_per_token
    recurrent = state.num_bytes - state.checkpoints.num_bytes - rows
    assert recurrent >= 0
    assert need.state_bytes == recurrent * (1 + MAX_CHECKPOINTS)


def test_the_column_of_memory_is_what_loading_takes(folder: Path, tmp_path: Path) -> None:
    """All kinds together, to the byte: a CPU holds experts of half precision in float32."""
    tensors, config = read(folder)
    halves = {n: a.astype(mx.bfloat16) if a.ndim > 1 else a for n, a in tensors.items()}
    made = write(tmp_path / folder.name, config, {"model.safetensors": halves})
    convert(made, tmp_path / "stacked", Options(), tell=lambda *told: None)
    for path in (folder, made, tmp_path / "stacked"):
        told = {kind.type: kind for kind in describe(path).kinds}
        assert sum(kind.held_bytes for kind in told.values()) == loaded_bytes(path)
    widened = told["BF16"].held_bytes - told["BF16"].disk_bytes
    assert (widened > 0) == (folder.name in ("qwen3_5_moe", "deepseek_v3"))


def test_what_a_model_leaves_out_takes_no_memory(tmp_path: Path) -> None:
    """Such as the part that sees, which takes a share of no more than norms that are made over."""
    folder = qwen_folder(tmp_path)
    tensors, config = read(folder)
    tensors["model.visual.patch_embed.weight"] = mx.zeros((64, 256), mx.float16)
    write(folder, config, {"model.safetensors": tensors})
    told = {kind.type: kind for kind in describe(folder).kinds}
    assert sum(kind.held_bytes for kind in told.values()) == loaded_bytes(folder)
    assert told["F16"].held_bytes < told["F16"].disk_bytes / 4


def test_reading_headers_reads_no_weights(folder: Path) -> None:
    """Nothing of the model is in memory afterwards, nor was."""
    describe(folder)  # what is imported and made once is there now
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    described = describe(folder)
    assert mx.get_peak_memory() - before < described.need.head_bytes / 10


def test_a_head_in_a_file_of_its_own_is_told_apart(tmp_path: Path) -> None:
    """As some publishers have it, and as `mtplx convert` writes it."""
    folder = qwen_folder(tmp_path)
    embedded = describe(folder).native_head
    mx.save_safetensors(
        str(folder / "mtp.safetensors"), split_off(folder, "mtp."), {"format": "pt"}
    )
    apart = describe(folder).native_head
    convert(folder, tmp_path / "out", Options(), tell=lambda *told: None)
    converted = describe(tmp_path / "out").native_head
    assert embedded is not None
    for found, where in ((apart, folder), (converted, tmp_path / "out")):
        assert found is not None
        assert not found.embedded
        assert found.files == (where / "mtp.safetensors",)
        assert found.num_bytes == embedded.num_bytes


def test_a_head_in_a_file_of_its_own_takes_memory(tmp_path: Path) -> None:
    """Where it is of another type than the trunk, under its own."""
    folder = qwen_folder(tmp_path)
    halves = {n: a.astype(mx.bfloat16) for n, a in split_off(folder, "mtp.").items()}
    mx.save_safetensors(str(folder / "mtp.safetensors"), halves, {"format": "pt"})
    told = {kind.type: kind for kind in describe(folder).kinds}
    assert sum(kind.held_bytes for kind in told.values()) == loaded_bytes(folder)
    assert told["BF16"].held_bytes == pytest.approx(told["BF16"].disk_bytes, rel=0.02)


def test_a_packed_model_takes_what_is_packed(tmp_path: Path) -> None:
    """Weights count as what they stand for, bytes as what they are."""
    folder, out = qwen_folder(tmp_path), tmp_path / "out"
    convert(folder, out, Options(bits=4, group_size=32), tell=lambda *told: None)
    original, packed = describe(folder), describe(out)
    assert packed.num_parameters == original.num_parameters
    on_disk = sum(kind.disk_bytes for kind in packed.kinds)
    assert packed.need.weights_bytes + packed.need.head_bytes == on_disk
    assert packed.need.cache_bytes_per_token == original.need.cache_bytes_per_token


def test_without_a_head_it_says_why(tmp_path: Path) -> None:
    """Stripped against the configuration's word, or never there."""
    folder = qwen_folder(tmp_path)
    split_off(folder, "mtp.")
    assert "a conversion has dropped them" in str(describe(folder).no_head_reason)
    config = json.loads((folder / "config.json").read_text())
    del config["mtp_num_hidden_layers"]
    (folder / "config.json").write_text(json.dumps(config))
    found = describe(folder)
    assert found.native_head is None
    assert found.family == "Qwen 3.5 / 3.6 / 3.8"
    assert "no tensor named mtp." in str(found.no_head_reason)


def test_what_cannot_be_built_is_described_all_the_same(tmp_path: Path) -> None:
    """An unknown architecture and a missing tensor: files and counts, and why that is all."""
    folder = qwen_folder(tmp_path)
    split_off(folder, "model.norm")
    found = describe(folder)
    assert "norm.weight is missing" in str(found.no_head_reason)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "newest_thing"}))
    found = describe(folder)
    assert found.architecture == "newest_thing"
    assert "newest_thing" in str(found.no_head_reason)
    assert found.num_parameters is not None
    assert found.need.weights_bytes == 4 * found.num_parameters
    assert found.need.cache_bytes_per_token is None
