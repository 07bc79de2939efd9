"""A converted checkpoint is the original in another form, whole or not there at all."""

import json
import os
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mtplx.conversion.convert import Conversion, convert
from mtplx.conversion.plan import Options
from mtplx.errors import CheckpointError, FileAccessError, UnsupportedTensorError, UsageError
from mtplx.models.quantisation import Packing
from tests.tiny_folder import write_folder

FOUR = Options(bits=4, shard_bytes=100_000)  # nine files
SAMPLE = mx.array([[5, 6, 7, 8]])


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_folder(tmp_path_factory.mktemp("original") / "model", hidden_size=256)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "generation_config.json").write_text('{"temperature": 0.6, "eos_token_id": [1, 2]}')
    (folder / "LICENSE").write_text("Do as you like.")
    (folder / "notes.bin").write_bytes(b"no part of a checkpoint")
    return folder


def quiet(what: str, done_bytes: int, total_bytes: int) -> None:
    pass


def made(original: Path, out: Path, options: Options = FOUR, **more: Any) -> Conversion:
    return convert(original, out, options, tell=quiet, **more)


def logits(folder: Path) -> mx.array:
    """As mlx-lm computes them, from its own loader."""
    from mlx_lm.utils import load_model

    model, _ = load_model(folder)
    result: mx.array = model(SAMPLE)
    return result


def changed(original: Path, folder: Path, **fields: Any) -> Path:
    """A copy of the original whose config.json says something else."""
    shutil.copytree(original, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))
    return folder


def test_unpacked_it_computes_the_same_bit_for_bit(original: Path, tmp_path: Path) -> None:
    """Over several files, for mlx-lm too."""
    result = made(original, tmp_path / "out", Options(shard_bytes=200_000))
    assert result.num_files == len(list((tmp_path / "out").glob("*.safetensors"))) > 5
    assert mx.array_equal(logits(tmp_path / "out"), logits(original))
    assert result.trunk.keys() == {None}


def test_packed_it_is_as_close_as_its_bits_allow(original: Path, tmp_path: Path) -> None:
    """Each bit more halves what is lost, and mlx-lm loads all of it."""
    exact, off = logits(original), []
    for bits in (3, 4, 6, 8):
        result = made(original, tmp_path / str(bits), Options(bits=bits))
        found = result.trunk[Packing(bits, 64)]
        assert found.num_matrices == 15
        off.append(found.relative)
        assert mx.abs(logits(tmp_path / str(bits)) - exact).max() < 20 * found.relative
    assert all(1.8 < more / less < 5 for more, less in pairwise(off))


def test_the_configuration_states_what_was_done(original: Path, tmp_path: Path) -> None:
    """The packing, the dtype, and that this program made it; all else is as it was."""
    out = tmp_path / "out"
    made(original, out, Options(bits=4, group_size=32, dtype="bfloat16"))
    before = json.loads((original / "config.json").read_text())
    after = json.loads((out / "config.json").read_text())
    packing = {"bits": 4, "group_size": 32, "mode": "affine"}
    assert after["quantization"] == after["quantization_config"] == packing
    assert after["torch_dtype"] == "bfloat16"
    assert after["mtplx"]["head"] is None
    assert {key: after[key] for key in before if key != "torch_dtype"} == {
        key: value for key, value in before.items() if key != "torch_dtype"
    }


def test_files_beside_the_weights_come_along(original: Path, tmp_path: Path) -> None:
    """Tokenizer, template, generation settings and licence, and nothing else."""
    out = tmp_path / "out"
    made(original, out, Options(bits=4))
    for name in ("tokenizer.json", "chat_template.jinja", "generation_config.json", "LICENSE"):
        assert (out / name).read_bytes() == (original / name).read_bytes()
    assert not (out / "notes.bin").exists()
    assert os.listdir(tmp_path) == ["out"]
    listed = json.loads((out / "model.safetensors.index.json").read_text())["weight_map"]
    assert set(listed.values()) == {file.name for file in out.glob("*.safetensors")}
    assert not [name for name in os.listdir(out) if name.startswith(".") or "conversion" in name]


def test_rows_without_whole_groups_stay_as_they_are(tmp_path: Path) -> None:
    """A matrix of 48 columns has no groups of 32, and its output has."""
    folder = write_folder(tmp_path / "model", hidden_size=48)
    result = made(folder, tmp_path / "out", Options(bits=4, group_size=32))
    assert result.trunk[Packing(4, 32)].num_matrices == 2  # down_proj, of 96 columns
    assert result.trunk[None].num_matrices == 18
    assert logits(tmp_path / "out").shape == (1, 4, 257)


def test_only_one_tensor_is_in_memory_at_a_time(tmp_path: Path) -> None:
    """Not the model, and not a file of it."""
    folder = write_folder(tmp_path / "model", hidden_size=1024)
    largest = 2 * 1024 * 1024 * 2
    whole = (folder / "model.safetensors").stat().st_size
    assert whole > 9 * largest
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    made(folder, tmp_path / "out", Options(bits=4))
    assert mx.get_peak_memory() - before < 4 * largest
    assert mx.get_active_memory() - before < largest


@pytest.mark.parametrize(
    "options", [Options(bits=7), Options(bits=4, group_size=16), Options(head_bits=9)]
)
def test_packings_that_mlx_has_not_are_refused(
    original: Path, tmp_path: Path, options: Options
) -> None:
    """Before anything is written."""
    with pytest.raises(UsageError, match="MLX has no packing of"):
        made(original, tmp_path / "out", options)
    assert os.listdir(tmp_path) == []


def test_nothing_is_overwritten_unasked(original: Path, tmp_path: Path) -> None:
    """Neither a checkpoint, which --force replaces, nor anything else, which it does not."""
    out = tmp_path / "out"
    made(original, out)
    with pytest.raises(FileAccessError, match="--force"):
        made(original, out, Options(bits=8))
    assert made(original, out, Options(bits=8), force=True).trunk.keys() == {None, Packing(8, 64)}
    assert len(list(out.glob("*.safetensors"))) == 1
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "me.jpg").touch()
    with pytest.raises(FileAccessError, match="is no checkpoint"):
        made(original, tmp_path / "photos", force=True)
    (tmp_path / "note").touch()
    with pytest.raises(FileAccessError, match="is no folder"):
        made(original, tmp_path / "note", force=True)
    assert sorted(os.listdir(tmp_path)) == ["note", "out", "photos"]


def test_the_original_is_never_the_target(original: Path, tmp_path: Path) -> None:
    """Nor a folder above it or within it, under whatever name, whatever is forced."""
    link = tmp_path / "link"
    link.symlink_to(original)
    before = sorted(os.listdir(original))
    for out in (original, original.parent, original / "out", link):
        with pytest.raises((UsageError, FileAccessError)):
            made(original, out, force=True)
    assert sorted(os.listdir(original)) == before


def test_a_folder_that_is_not_there_is_not_made(original: Path, tmp_path: Path) -> None:
    """A mistyped path does not become a tree of folders."""
    with pytest.raises(FileAccessError, match="there is no folder"):
        made(original, tmp_path / "mistyped" / "out")


def sharded(original: Path, folder: Path) -> Path:
    made(original, folder, Options(shard_bytes=200_000))
    return folder


def test_missing_parts_of_the_original_are_told_by_name(original: Path, tmp_path: Path) -> None:
    """A file and a tensor that the index lists, and a file that was cut."""
    source, out = sharded(original, tmp_path / "sharded"), tmp_path / "out"
    shard = sorted(source.glob("*.safetensors"))[1]
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-10])
    with pytest.raises(CheckpointError, match=shard.name):
        made(source, out)
    shard.unlink()
    with pytest.raises(CheckpointError, match=f"{shard.name} is not there"):
        made(source, out)
    mx.save_safetensors(str(shard), {"other": mx.zeros(1)})
    with pytest.raises(CheckpointError, match=r"model\..* is missing"):
        made(source, out)
    assert not out.exists()


def test_checkpoints_that_mlx_lm_has_no_model_for_are_refused(
    original: Path, tmp_path: Path
) -> None:
    """An architecture, a tensor or a shape that is not known, each by its name."""
    with pytest.raises(CheckpointError, match="newest_thing"):
        made(changed(original, tmp_path / "a", model_type="newest_thing"), tmp_path / "out")
    with pytest.raises(UnsupportedTensorError, match=r"up_proj\.weight is \[512, 256\]"):
        made(changed(original, tmp_path / "b", intermediate_size=500), tmp_path / "out")
    odd = write_folder(tmp_path / "odd", more=("model.layers.0.extra.weight",))
    with pytest.raises(UnsupportedTensorError, match=r"layers\.0\.extra\.weight is left over"):
        made(odd, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_packed_is_not_packed_again(original: Path, tmp_path: Path) -> None:
    """A packed checkpoint leads to the original."""
    made(original, tmp_path / "packed", Options(bits=4))
    with pytest.raises(CheckpointError, match="packed already"):
        made(tmp_path / "packed", tmp_path / "out")
