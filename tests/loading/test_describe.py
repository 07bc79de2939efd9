import json
from pathlib import Path

import mlx.core as mx
import pytest

from mtplx.errors import CheckpointError
from mtplx.loading.describe import describe
from mtplx.loading.head_file import HeadFile
from mtplx.loading.load import load
from mtplx.loading.tensor_list import TensorEntry, num_weights, safetensors_entries
from mtplx.models.llama import LlamaTarget
from mtplx.models.quantisation import Packing, Stated
from tests.tiny_folder import CONFIG, write_folder
from tests.tiny_gguf import DIMS, write_head, write_model


def test_a_gguf_file_is_what_its_metadata_says(tmp_path: Path) -> None:
    """Name, architecture, licence, sizes and tensors come from the header."""
    path = write_model(tmp_path / "tiny.gguf")
    found = describe(path)
    assert (found.name, found.architecture, found.licence) == ("Tiny", "llama", "cc0-1.0")
    assert (found.context_length, found.vocab_size) == (DIMS.context_length, DIMS.vocab_size)
    assert [(kind.type, kind.count) for kind in found.kinds] == [("F32", 20)]
    assert found.num_parameters is not None
    assert found.kinds[0].disk_bytes == 4 * found.num_parameters


def test_bytes_in_memory_are_those_that_loading_takes(tmp_path: Path) -> None:
    """Weights, head, shortlist and cache, told from headers, are what the loaded arrays hold."""
    path = write_model(tmp_path / "tiny.gguf")
    head = write_head(tmp_path / "head.safetensors", path)
    need = describe(path, head=head, packed=mx.metal.is_available()).need
    model = load(path, head=head)
    assert isinstance(model.target, LlamaTarget)
    assert isinstance(model.head, HeadFile)
    assert model.shortlist is not None
    assert need.weights_bytes == sum(array.nbytes for array in model.target.arrays())
    assert need.head_bytes == sum(array.nbytes for array in model.head.weights.arrays())
    assert need.shortlist_bytes == model.shortlist.weight.nbytes
    state = model.new_state()
    state.begin(list(range(1, 258)), drafting=True)  # 256 rows, the step by which caches grow
    rows = 256 * need.cache_bytes_per_token if need.cache_bytes_per_token else 0
    assert state.num_bytes == rows


def test_types_that_cannot_be_read_are_marked(tmp_path: Path) -> None:
    """A file with a type that loading refuses is described all the same."""
    found = describe(write_model(tmp_path / "odd.gguf", odd_type=True))
    assert {kind.type: kind.readable for kind in found.kinds} == {"F32": True, "I32": False}


def test_a_folder_is_what_its_files_say(tmp_path: Path) -> None:
    """Sizes come from config.json, tensors from the shards, the licence from the model card."""
    path = write_folder(tmp_path / "model")
    (path / "README.md").write_text("---\nlanguage: en\nlicense: mit\n---\n# A model\n")
    found = describe(path)
    assert (found.architecture, found.licence) == ("llama", "mit")
    assert found.context_length == CONFIG["max_position_embeddings"]
    assert [(kind.type, kind.count) for kind in found.kinds] == [("F16", 20)]
    assert found.num_parameters is not None
    assert found.need.weights_bytes == found.kinds[0].disk_bytes == 2 * found.num_parameters
    assert found.need.cache_bytes_per_token == 2 * 2 * 2 * 16 * 2


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("mtp.norm.weight", 1),
        ("language_model.mtp.fc.weight", 1),
        ("model.mtp_layers.0.norm.weight", 1),
        ("model.layers.2.mlp.norm.weight", 0),
    ],
)
def test_mtp_tensors_are_found_by_name(tmp_path: Path, name: str, count: int) -> None:
    """Heads that a checkpoint brings are counted, whatever its config says."""
    assert describe(write_folder(tmp_path / "model", more=(name,))).num_mtp_tensors == count


def test_packed_weights_count_as_what_they_stand_for() -> None:
    """Codes of 4 bits in 32-bit words are eight weights each."""
    entries = [
        TensorEntry("a.weight", "U32", (8, 16), 512),
        TensorEntry("a.scales", "F16", (8, 2), 32),
        TensorEntry("a.biases", "F16", (8, 2), 32),
        TensorEntry("norm.weight", "F16", (128,), 256),
    ]
    assert num_weights(entries, Stated(Packing(4, 64))) == 8 * 128 + 128
    assert num_weights(entries, Stated(Packing(8, 32))) == 8 * 64 + 128
    with pytest.raises(CheckpointError, match="a may be"):
        num_weights(entries, Stated())


def test_damaged_folders_are_told_by_file(tmp_path: Path) -> None:
    """A cut shard and a config that is no JSON object name themselves."""
    path = write_folder(tmp_path / "model")
    shard = path / "model.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        safetensors_entries(path)
    shard.write_bytes(whole)
    for content in ("{", json.dumps([1])):
        (path / "config.json").write_text(content)
        with pytest.raises(CheckpointError, match=r"config\.json"):
            describe(path)
