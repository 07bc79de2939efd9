"""What a GGUF file takes, told from its header, is what its model and its state hold."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from mtplx.checkpoints import MAX_CHECKPOINTS
from mtplx.loading.describe import describe
from mtplx.loading.gguf_file import open_gguf
from mtplx.loading.gguf_model import GgufModel, gguf_model
from mtplx.loading.gguf_state import gguf_kv_dtype, gguf_state
from mtplx.loading.head_file import read_head
from mtplx.loading.native_folder import folder_model
from mtplx.models.drafter import HeadDrafter
from mtplx.models.mlx_lm_target import MlxLmTarget
from mtplx.models.packed import held_arrays
from mtplx.models.shortlist import frequent_ids, make_shortlist
from mtplx.state import DecodeState
from tests.families import qwen
from tests.families.assembled import assemble, write_checkpoint
from tests.foreign import read_llama, write_llama
from tests.kernels.hosts import fast
from tests.kernels.platforms import needs_linux
from tests.loading.gguf_conversion import CASES, stored_weights, write_case
from tests.loading.test_gguf_hybrids import MORE, reference, with_head
from tests.tiny import DIMS, tiny_target
from tests.tiny_gguf import write_head

TYPES = ("Q5_1", "Q4_0", "F16", "MXFP4", "BF16", "Q8_0")


def bytes_of(model: GgufModel) -> int:
    """Of the trunk's arrays, its final norm included, which is lifted out of the model."""
    assert isinstance(model.target, MlxLmTarget)
    named: Any = tree_flatten(model.target.model.parameters())
    held = [*(array for _, array in named), *held_arrays(model.target.model)]
    return sum(array.nbytes for array in [*held, model.target.final_norm.weight])


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("arch", CASES)
def test_state_is_counted_by_the_kind_of_each_layer(
    arch: str, on_gpu: bool, tmp_path: Path
) -> None:
    """Keys and values of layers of attention, windows, and recurrent states, to the byte."""
    weights = stored_weights(arch, reference(arch)[0])
    path = write_case(tmp_path / "a.gguf", CASES[arch], weights)
    need, kv_dtype = describe(path, packed=on_gpu).need, gguf_kv_dtype(packed=on_gpu)
    model = gguf_model(open_gguf(path), 512, packed=False, kv_dtype=kv_dtype)
    assert on_gpu or need.weights_bytes == bytes_of(model)
    state = DecodeState(model.target)
    state.begin([1] * 257, drafting=False)  # 256 rows, the step by which caches grow
    assert need.cache_bytes_per_token is not None
    fixed = state.num_bytes - state.checkpoints.num_bytes - 256 * need.cache_bytes_per_token
    told = gguf_state(open_gguf(path).metadata, kv_dtype=kv_dtype)
    assert told is not None
    # Windows count as full, which these are not yet.
    assert told.recurrent + told.windows / 2 <= fixed <= told.recurrent + told.windows
    assert told.windows == 0 or arch == "gemma3"
    assert need.state_bytes == told.windows + told.recurrent * (1 + MAX_CHECKPOINTS)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_head_in_the_file_keeps_rows_of_its_own(on_gpu: bool, tmp_path: Path) -> None:
    """One layer of attention more."""
    trunk, head = with_head("qwen35")
    path = write_case(tmp_path / "a.gguf", CASES["qwen35"], trunk | head, **MORE)
    need, kv_dtype = describe(path, packed=on_gpu).need, gguf_kv_dtype(packed=on_gpu)
    model = gguf_model(open_gguf(path), 512, packed=False, kv_dtype=kv_dtype)
    assert model.head is not None
    state = DecodeState(model.target, HeadDrafter(model.head.on(model.target)))
    state.begin([1] * 257, drafting=True)
    assert need.cache_bytes_per_token is not None
    rows = 256 * need.cache_bytes_per_token
    held = state.num_bytes - state.checkpoints.num_bytes
    assert held == rows + need.state_bytes // (1 + MAX_CHECKPOINTS)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_rows_of_a_llama_and_its_head_are_counted(on_gpu: bool, tmp_path: Path) -> None:
    """float16 on a GPU, float32 on a CPU, of the trunk's layers and of the head's."""
    path = write_llama(tmp_path, tiny_target(), lambda name: "F32")
    head = write_head(tmp_path / "head.safetensors", path, DIMS)
    need, kv_dtype = describe(path, head=head, packed=on_gpu).need, gguf_kv_dtype(packed=on_gpu)
    target = gguf_model(open_gguf(path), 512, packed=False, kv_dtype=kv_dtype).target
    state = DecodeState(target, HeadDrafter(read_head(head, DIMS).on(target)))
    state.begin([1] * 257, drafting=True)
    assert need.cache_bytes_per_token is not None
    assert state.num_bytes == 256 * need.cache_bytes_per_token


def test_a_shortlist_is_held_as_its_rows_are(tmp_path: Path) -> None:
    """Packed ones of a packed output layer."""
    dims = replace(DIMS, mlp_size=64)
    path = write_llama(
        tmp_path, tiny_target(dims=dims), lambda name: "F32" if "norm" in name else "Q8_0"
    )
    head = write_head(tmp_path / "head.safetensors", path, dims)
    for packed in (False, True):
        target, need = (
            read_llama(path, packed=packed),
            describe(path, head=head, packed=packed).need,
        )
        shortlist = make_shortlist(target.lm_head, read_head(head, target.dims).shortlist)
        assert need.shortlist_bytes == sum(a.nbytes for a in shortlist.matrix.arrays())


@pytest.mark.parametrize("kind", ["a file", "a folder"])
def test_a_head_without_a_shortlist_of_its_own_is_given_one(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frequent ids of a large vocabulary, in memory as the rows of the output layer are."""
    monkeypatch.setattr("mtplx.models.shortlist.NUM_FREQUENT", 20)
    monkeypatch.setattr("mtplx.models.shortlist.LARGE_VOCABULARY", 40)
    if kind == "a file":
        trunk, head = with_head("qwen35")
        path = write_case(tmp_path / "a.gguf", CASES["qwen35"], trunk | head, **MORE)
        target: Any = gguf_model(open_gguf(path), 512, packed=False).target
    else:
        path = write_checkpoint(assemble(qwen.QWEN3_5), tmp_path / "a")
        target = folder_model(path).target
    ids = frequent_ids(target.vocab_size, [])
    assert ids is not None
    arrays = make_shortlist(target.lm_head, ids).matrix.arrays()
    assert describe(path).need.shortlist_bytes == sum(array.nbytes for array in arrays) > 0


@needs_linux
@pytest.mark.parametrize("arch", ["qwen35", "qwen3next"])
def test_packed_weights_count_as_they_are(arch: str, tmp_path: Path) -> None:
    """But for the orders of rows and columns, which are no weights."""
    weights = stored_weights(arch, reference(arch)[0])
    kinds = {
        name: "F32" if array.ndim < 2 or array.shape[-1] % 32 else TYPES[i % len(TYPES)]
        for i, (name, array) in enumerate(sorted(weights.items()))
    }
    path = write_case(tmp_path / "a.gguf", CASES[arch], weights, kinds.__getitem__)
    need = describe(path, packed=True).need
    model = gguf_model(open_gguf(path), 512, packed=True, maker=fast)
    assert isinstance(model.target, MlxLmTarget)
    held = held_arrays(model.target.model)
    orders = sum(a.nbytes for a in held if mx.issubdtype(a.dtype, mx.integer) and a.ndim == 1)
    assert need.weights_bytes == bytes_of(model) - orders
    assert need.weights_bytes < describe(path).need.weights_bytes / 2
