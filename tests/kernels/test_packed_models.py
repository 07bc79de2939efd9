"""Models whose weights stay packed give the logits of their expanded ones, through our kernels."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import mlx.core as mx
import numpy as np
import pytest

from mtplx.bench.ceiling import weight_bytes_per_token
from mtplx.kernels.source import Maker
from mtplx.loading.expanded_tensors import Manner
from mtplx.loading.gguf_file import open_gguf
from mtplx.loading.gguf_model import GgufModel, gguf_model
from mtplx.loading.gguf_tensors import Rows, gguf_tensors
from mtplx.loading.native_folder import folder_model
from mtplx.models.drafter import HeadDrafter
from mtplx.models.mlx_lm_target import MlxLmTarget
from mtplx.models.packed import PackedLinear, held_arrays
from mtplx.state import DecodeState
from tests.foreign import read_llama, write_llama
from tests.kernels.hosts import Watch, fast
from tests.kernels.platforms import needs_linux
from tests.loading.gguf_conversion import CASES, Arrays, stored_weights, write_case
from tests.loading.test_foreign_packing import mixed
from tests.loading.test_gguf_hybrids import MORE, reference, with_head
from tests.tiny import DIMS, finish, random_prompt, start, tiny_target
from tests.tiny_folder import write_folder
from tests.undo.passes import keep

PROMPT = random_prompt(5)
TYPES = ("Q5_1", "Q4_0", "MXFP4", "Q5_0", "Q8_0", "Q4_1")


def kinds_of(weights: Arrays) -> dict[str, str]:
    """A type for each matrix; the smallest stay as they are."""
    return {
        name: "F32" if array.ndim < 2 or array.shape[-1] % 32 else TYPES[i % len(TYPES)]
        for i, (name, array) in enumerate(sorted(weights.items()))
    }


def both(path: Path, maker: Maker) -> tuple[GgufModel, GgufModel]:
    file = open_gguf(path)
    return gguf_model(file, 512, packed=False), gguf_model(file, 512, packed=True, maker=maker)


def logits_of(model: GgufModel, rows: int) -> mx.array:
    target = model.target
    hidden = target.forward(mx.array(PROMPT[:rows]), target.make_cache())
    return target.logits(target.normalise(hidden))


@pytest.mark.slow
@pytest.mark.parametrize("arch", CASES)
def test_packed_weights_are_the_expanded_ones(arch: str, maker: Maker, tmp_path: Path) -> None:
    """Orders of rows and columns included: one row and several."""
    weights = stored_weights(arch, reference(arch)[0])
    kinds = kinds_of(weights)
    dense, packed = both(
        write_case(tmp_path / "a.gguf", CASES[arch], weights, kinds.__getitem__), maker
    )
    for rows in (1, 5):
        expected, found = logits_of(dense, rows), logits_of(packed, rows)
        assert mx.abs(found - expected).max() < 1e-3 * mx.abs(expected).max()


def test_what_stays_packed_is_what_is_on_disk(maker: Maker, tmp_path: Path) -> None:
    """No other copy of it is held."""
    weights = stored_weights("qwen35", reference("qwen35")[0])
    kinds = kinds_of(weights)
    path = write_case(tmp_path / "a.gguf", CASES["qwen35"], weights, kinds.__getitem__)
    _, packed = both(path, maker)
    assert isinstance(packed.target, MlxLmTarget)
    held = sum(array.nbytes for array in held_arrays(packed.target.model))
    tensors = open_gguf(path).tensors
    stored = sum(tensors[name].data.nbytes for name, kind in kinds.items() if kind != "F32")
    assert stored <= held < 1.1 * stored
    table = sum(a.nbytes for a in packed.target.embedding.arrays())
    read = weight_bytes_per_token(packed.target)
    assert read is not None
    assert held - table < read < 2 * held


SAME = {"attn_qkv": "Q5_1", "attn_gate": "Q5_1"}
DIFFERENT = {"attn_qkv": "Q5_1", "attn_gate": "F16"}


@pytest.mark.parametrize("types", [SAME, DIFFERENT])
def test_rows_of_two_matrices_are_interleaved_packed(
    types: dict[str, str], maker: Maker, tmp_path: Path
) -> None:
    """Qwen3-Next's projections: one matrix where both are of one type, else two products."""
    weights = stored_weights("qwen3next", reference("qwen3next")[0])

    def kind_of(name: str) -> str:
        return types.get(name.split(".")[-2], "F32")

    path = write_case(tmp_path / "a.gguf", CASES["qwen3next"], weights, kind_of)
    dense, packed = both(path, maker)
    expected, found = logits_of(dense, 5), logits_of(packed, 5)
    assert mx.abs(found - expected).max() < 1e-3 * mx.abs(expected).max()
    assert isinstance(packed.target, MlxLmTarget)
    mixer = packed.target.model.layers[0].linear_attn
    assert isinstance(mixer.in_proj_qkvz, PackedLinear)
    orders = [a.nbytes for a in (mixer.in_proj_qkvz.part.rows,) if a is not None]
    held = sum(a.nbytes for a in held_arrays(mixer.in_proj_qkvz))
    tensors = open_gguf(path).tensors
    stored = sum(tensors[f"blk.0.{name}.weight"].data.nbytes for name in types)
    assert held - sum(orders) == stored
    assert bool(orders) == (types is DIFFERENT)


@needs_linux
def test_rows_that_are_not_interleaved_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One matrix behind the other would be another model."""
    weights = stored_weights("qwen3next", reference("qwen3next")[0])
    kinds = {name: SAME.get(name.split(".")[-2], "F32") for name in weights}
    path = write_case(tmp_path / "a.gguf", CASES["qwen3next"], weights, kinds.__getitem__)

    def wrong(weights: dict[str, mx.array], config: Mapping[str, Any]) -> None:
        for name in [name for name in weights if name.endswith("in_proj_qkv.weight")]:
            parts = [weights.pop(name), weights.pop(name.replace("in_proj_qkv", "in_proj_z"))]
            weights[name.replace("in_proj_qkv", "in_proj_qkvz")] = mx.concatenate(parts)

    expected = logits_of(gguf_model(open_gguf(path), 512, packed=False), 5)
    monkeypatch.setattr("mtplx.loading.gguf_qwen35.joined_projections", wrong)
    found = logits_of(gguf_model(open_gguf(path), 512, packed=True, maker=fast), 5)
    assert mx.abs(found - expected).max() > 0.01 * mx.abs(expected).max()


@needs_linux
def test_undoing_a_pass_reads_no_packed_weights(tmp_path: Path) -> None:
    """What their products gave is on the tape, so that no kernel runs again."""
    weights = stored_weights("lfm2", reference("lfm2")[0])
    path = write_case(tmp_path / "a.gguf", CASES["lfm2"], weights, kinds_of(weights).__getitem__)
    watch = Watch()
    target = gguf_model(open_gguf(path), 512, packed=True, maker=watch).target
    caches = target.make_cache()
    mx.eval(target.forward(mx.array(PROMPT), caches))
    assert watch.results
    watch.results.clear()
    keep(caches, 0, len(PROMPT), 2)
    mx.eval([cache.state for cache in caches])
    assert watch.results == []
    assert sum(cache.num_replays for cache in caches) == 0


@pytest.mark.slow
def test_a_packed_head_drafts_as_the_expanded_one(maker: Maker, tmp_path: Path) -> None:
    """Trunk and head in blocks: the same text, with drafts that are accepted and refused."""
    trunk, head = with_head("qwen35")
    kinds = kinds_of(trunk | head)
    path = write_case(tmp_path / "a.gguf", CASES["qwen35"], trunk | head, kinds.__getitem__, **MORE)
    texts = []
    for model in both(path, maker):
        assert model.head is not None
        state = DecodeState(model.target, HeadDrafter(model.head.on(model.target)))
        texts.append(finish(start(state, PROMPT, depth=2)))
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_a_llama_type_trunk_stays_packed_in_any_format(maker: Maker, tmp_path: Path) -> None:
    """Formats that MLX has no packing for, joined where they are of one type."""
    target = tiny_target(dims=replace(DIMS, mlp_size=64))
    mixed = {"attn_v": "Q5_0", "ffn_up": "MXFP4", "output": "Q5_1"}

    def kind_of(name: str) -> str:
        return "F32" if "norm" in name else mixed.get(name.split(".")[-2], "Q5_1")

    path = write_llama(tmp_path, target, kind_of)
    dense, packed = read_llama(path), read_llama(path, packed=True, maker=maker)
    for rows in (1, 5):
        one, other = (
            each.logits(each.normalise(each.forward(mx.array(PROMPT[:rows]), each.make_cache())))
            for each in (dense, packed)
        )
        assert mx.abs(one - other).max() < 1e-3 * mx.abs(one).max()
    assert sum(a.nbytes for a in packed.arrays()) < sum(a.nbytes for a in dense.arrays()) / 3


def test_matrices_with_a_factor_of_each_are_joined(maker: Maker, tmp_path: Path) -> None:
    """As NVFP4 has one beside each tensor: of one type, and yet not one product."""
    path, rows = tmp_path / "a.gguf", np.random.default_rng(3).normal(size=(2, 8, 64))
    writer = gguf.GGUFWriter(path, "llama")
    kind = gguf.GGMLQuantizationType.Q5_1
    for name, weights, factor in zip("qk", rows.astype(np.float32), (2, 0.5), strict=True):
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(weights, kind), raw_dtype=kind)
        writer.add_tensor(f"{name}.scale", np.array([factor], np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    parts, x = [Rows("q.weight", 8), Rows("k.weight", 8)], mx.random.normal((1, 64))
    dense, packed = (
        gguf_tensors(open_gguf(path), packed=packed, maker=maker).joined(parts, 64)(x)
        for packed in (False, True)
    )
    assert mx.abs(packed - dense).max() < 1e-4 * mx.abs(dense).max()


@pytest.mark.slow
def test_a_mixed_checkpoint_stays_packed(maker: Maker, tmp_path: Path) -> None:
    """NVFP4 and FP8 side by side in safetensors: the logits of the same matrices expanded."""
    folder = write_folder(tmp_path / "m", hidden_size=64)
    tensors = mx.load(str(folder / "model.safetensors"))
    assert isinstance(tensors, dict)
    mx.save_safetensors(str(folder / "model.safetensors"), mixed(tensors)[0])
    manner = Manner(keep=True, maker=maker)
    logits = []
    for model in (folder_model(folder), folder_model(folder, manner=manner)):
        target = model.target
        hidden = target.forward(mx.array(PROMPT), target.make_cache())
        logits.append(target.logits(target.normalise(hidden)))
    assert mx.abs(logits[0] - logits[1]).max() < 2e-3 * mx.abs(logits[0]).max()
    held = sum(array.nbytes for array in held_arrays(model.target.model))
    stored = sum(a.nbytes for n, a in mixed(tensors)[0].items() if a.dtype == mx.uint8)
    assert stored <= held < 1.3 * stored
