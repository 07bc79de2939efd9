"""Packed matrices of other programs' safetensors: the weights that ml_dtypes makes of them."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from mtplx.errors import CheckpointError, UnsupportedTensorError
from mtplx.loading.expanded_tensors import (
    Manner,
    foreign_tensors,
    fp8_block,
    ignored_directives,
    told_expanded,
)
from mtplx.loading.native_folder import folder_model, usual_manner
from mtplx.loading.stored_tensors import open_folder
from mtplx.models.family import Tensors
from tests.tiny_folder import write_folder

Bytes = NDArray[Any]  # numpy's types lose the width of what is computed
Floats = NDArray[Any]
ROWS, WIDTH = 130, 192


def random_bytes(*shape: int, seed: int = 0) -> Bytes:
    return np.random.default_rng([seed, *shape]).integers(0, 256, shape, dtype=np.uint8)


def numbers(*shape: int, seed: int = 0) -> Bytes:
    """E4M3 bytes without those that stand for no number."""
    raw = random_bytes(*shape, seed=seed)
    raw[(raw & 0x7F) == 0x7F] = 0x30
    return raw


def e4m3(raw: Bytes) -> Floats:
    return np.asarray(raw.view(ml_dtypes.float8_e4m3fn), np.float32)


def e2m1(raw: Bytes) -> Floats:
    """Nibbles of bytes, the low ones first."""
    nibbles = np.stack([raw & 15, raw >> 4], axis=-1).reshape(*raw.shape[:-1], -1)
    return np.asarray(nibbles.view(ml_dtypes.float4_e2m1fn), np.float32)


def repeated(scale: Floats, times: int) -> Floats:
    return np.repeat(scale, times, axis=-1)


class Case:
    """A packed matrix's tensors, and the weights that they stand for."""

    def __init__(self, weights: Floats, **parts: Any) -> None:
        self.weights = weights
        self.parts = {
            f"layer.{name}": array if isinstance(array, mx.array) else mx.array(array)
            for name, array in parts.items()
        }


CODES = random_bytes(ROWS, WIDTH // 2)
FP4_SCALE = numbers(ROWS, WIDTH // 16, seed=1) & 0x7F
FP4_SCALE[FP4_SCALE == 0x7F] = 1
FP4 = e2m1(CODES) * repeated(e4m3(FP4_SCALE), 16)
POWERS = random_bytes(ROWS, WIDTH // 32, seed=2) % 60 + 100
E8M0 = POWERS.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
FP8 = numbers(ROWS, WIDTH, seed=3)
PER_ROW = np.random.default_rng(4).uniform(0.5, 2, (ROWS, 1)).astype(np.float32)
PER_BLOCK = np.random.default_rng(5).uniform(0.5, 2, (2, 2)).astype(np.float32)
BLOCKS = np.kron(PER_BLOCK, np.ones((128, 128), np.float32))[:ROWS, :WIDTH]
WORDS = np.random.default_rng(6).integers(0, 2**32, (ROWS, WIDTH // 8), dtype=np.uint32)
INT4 = ((WORDS[..., None] >> np.arange(0, 32, 4, dtype=np.uint32)) & 15).reshape(ROWS, -1)
GROUPS = np.random.default_rng(7).uniform(0.5, 2, (ROWS, WIDTH // 32)).astype(np.float16)
ALPHA = np.float32(0.0123)
CASES = {
    "ModelOpt NVFP4": Case(
        FP4 * ALPHA,
        weight=CODES,
        weight_scale=FP4_SCALE,
        weight_scale_2=ALPHA,
        input_scale=np.float32(7),
    ),
    "compressed-tensors NVFP4": Case(
        FP4 * (np.float32(1) / np.float32(1 / ALPHA)),
        weight_packed=CODES,
        weight_scale=FP4_SCALE,
        weight_global_scale=np.array([1 / ALPHA], np.float32),
        input_global_scale=np.array([7], np.float32),
    ),
    "MXFP4": Case(e2m1(CODES) * repeated(E8M0, 32), weight_packed=CODES, weight_scale=POWERS),
    "MXFP8": Case(e4m3(FP8) * repeated(E8M0, 32), weight=FP8, weight_scale=POWERS),
    "MXFP8, by another name": Case(
        e4m3(FP8) * repeated(E8M0, 32), weight=FP8, weight_scale_inv=POWERS
    ),
    "FP8 of one scale": Case(e4m3(FP8) * ALPHA, weight=FP8, weight_scale=ALPHA),
    "FP8 of one scale, in a list": Case(
        e4m3(FP8) * ALPHA, weight=FP8, weight_scale=np.array([ALPHA])
    ),
    "FP8 by rows": Case(
        e4m3(FP8) * np.float32(mx.array(PER_ROW).astype(mx.bfloat16).astype(mx.float32)),
        weight=FP8,
        weight_scale=mx.array(PER_ROW).astype(mx.bfloat16),
    ),
    "FP8 by blocks": Case(e4m3(FP8) * BLOCKS, weight=FP8, weight_scale_inv=PER_BLOCK),
    "FP8 by blocks, powers of two": Case(
        e4m3(FP8) * np.kron(E8M0[:2, :2], np.ones((128, 128)))[:ROWS, :WIDTH].astype(np.float32),
        weight=FP8,
        weight_scale_inv=np.ascontiguousarray(POWERS[:2, :2]),
    ),
    "FP8 by blocks, by another name": Case(e4m3(FP8) * BLOCKS, weight=FP8, weight_scale=PER_BLOCK),
    "int4": Case(
        (INT4.astype(np.float32) - 8) * repeated(GROUPS.astype(np.float32), 32),
        weight_packed=WORDS.view(np.int32),
        weight_scale=GROUPS,
        weight_shape=np.array([ROWS, WIDTH]),
    ),
}


def write(path: Path, *files: Tensors, config: dict[str, Any] | None = None) -> Path:
    """A folder of these files, which no model has to be in."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config or {}))
    for i, tensors in enumerate(files):
        mx.save_safetensors(str(path / f"model-{i}.safetensors"), tensors)
    return path


def read(path: Path) -> Tensors:
    folder = open_folder(path)
    everything = {name: array for file in folder.files for name, array in file.tensors.items()}
    return foreign_tensors(everything, Manner(block=fp8_block(folder.config))).expanded()


@pytest.mark.parametrize("name", CASES)
def test_weights_are_what_the_format_says(name: str, tmp_path: Path) -> None:
    """Equal in every bit of float32, and nothing is left beside them."""
    case = CASES[name]
    bias = {"layer.bias": mx.ones(ROWS), "layer.k_scale": mx.array(1.0)}
    tensors = read(write(tmp_path / "a", case.parts | bias))
    assert set(tensors) == {"layer.weight", "layer.bias"}
    assert np.array_equal(np.array(tensors["layer.weight"]), case.weights)


def test_every_byte_is_the_number_it_stands_for(tmp_path: Path) -> None:
    """All 254 of E4M3 that are numbers."""
    every = np.arange(256, dtype=np.uint8)
    raw = np.where((every & 0x7F) == 0x7F, 0, every)[None]
    tensors = read(
        write(tmp_path / "a", {"l.weight": mx.array(raw), "l.weight_scale": mx.array(1.0)})
    )
    assert np.array_equal(np.array(tensors["l.weight"]), e4m3(raw))


def test_both_dialects_of_nvfp4_are_one_matrix(tmp_path: Path) -> None:
    """Their scales of a matrix are each other's reciprocals."""
    one, other = (
        read(write(tmp_path / str(i), CASES[name].parts))["layer.weight"]
        for i, name in enumerate(["ModelOpt NVFP4", "compressed-tensors NVFP4"])
    )
    assert mx.allclose(one, other, rtol=1e-6, atol=0)
    assert mx.abs(one).max() < 1e3 * ALPHA * 6


def test_a_scale_may_be_in_another_file(tmp_path: Path) -> None:
    """Shards end where their size does."""
    for name, case in CASES.items():
        codes, *scales = case.parts
        files = [{codes: case.parts[codes]}, {scale: case.parts[scale] for scale in scales}]
        tensors = read(write(tmp_path / name.replace(" ", ""), *files))
        assert np.array_equal(np.array(tensors["layer.weight"]), case.weights)


@pytest.mark.parametrize("name", CASES)
def test_a_missing_scale_is_named(name: str, tmp_path: Path) -> None:
    """Bytes without one would be noise that looks like a model."""
    case = CASES[name]
    optional = ("input", "weight_shape" if name != "int4" else "none")
    for scale in list(case.parts)[1:]:
        if any(word in scale for word in optional):
            continue
        parts = {n: a for n, a in case.parts.items() if n != scale}
        folder = write(tmp_path / scale, parts)
        with pytest.raises(CheckpointError, match=r"layer is packed, and layer\.weight_\w+ is not"):
            read(folder)


DAMAGE = {
    "ModelOpt NVFP4": ("weight_scale", 0x7F),
    "compressed-tensors NVFP4": ("weight_scale", 0xFF),
    "MXFP4": ("weight_scale", 0xFF),
    "MXFP8": ("weight", 0x7F),
    "FP8 of one scale": ("weight", 0xFF),
    "FP8 by rows": ("weight_scale", np.nan),
    "FP8 by blocks": ("weight_scale_inv", np.inf),
    "FP8 by blocks, powers of two": ("weight_scale_inv", 0xFF),
    "int4": ("weight_scale", np.nan),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_is_no_number_is_refused_by_name(name: str, tmp_path: Path) -> None:
    """One byte or one scale among many."""
    part, value = DAMAGE[name]
    parts = dict(CASES[name].parts)
    damaged = mx.array(parts[f"layer.{part}"])
    damaged[(0,) * damaged.ndim] = value
    folder = write(tmp_path / "a", parts | {f"layer.{part}": damaged})
    with pytest.raises(CheckpointError, match=r"layer.*(no number|not finite)"):
        read(folder)


@pytest.mark.parametrize(
    ("part", "shape"),
    [("weight_scale", (ROWS, 5)), ("weight_scale", (7, 1)), ("weight_scale_inv", (3, 2))],
)
def test_a_scale_of_another_shape_is_refused_by_name(
    part: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    """With both shapes."""
    folder = write(tmp_path / "a", {"l.weight": mx.array(FP8), f"l.{part}": mx.ones(shape)})
    told = rf"l is packed .*\[{ROWS}, {WIDTH}\].*\[{shape[0]}"
    with pytest.raises(UnsupportedTensorError, match=told):
        read(folder)


@pytest.mark.parametrize("scale", [1, mx.zeros((ROWS, 7)), mx.zeros((3, WIDTH // 16))])
def test_bytes_of_scales_of_another_shape_are_refused_by_name(
    scale: int | mx.array, tmp_path: Path
) -> None:
    """Of NVFP4, which is known by its further scale."""
    parts = {"l.weight": mx.array(CODES), "l.weight_scale_2": mx.array(1.0)}
    parts["l.weight_scale"] = mx.array(scale).astype(mx.uint8)
    with pytest.raises(UnsupportedTensorError, match="l is packed as"):
        read(write(tmp_path / "a", parts))


def test_what_may_not_stay_packed_is_told() -> None:
    """All matrices of a model that is split; none where everything is expanded anyway."""
    tensors = {"l.weight": mx.array(FP8), "l.weight_scale": mx.array(1.0)}
    assert told_expanded(foreign_tensors(tensors, Manner(keep=True))) is None
    split = told_expanded(foreign_tensors(tensors, usual_manner(packed=True, split=True)))
    assert "1 such as l (the model is split over machines)" in str(split)
    assert told_expanded(foreign_tensors(tensors, usual_manner())) is None


def test_zero_points_are_refused_by_name(tmp_path: Path) -> None:
    """They are packed along the other axis."""
    parts = CASES["int4"].parts | {"layer.weight_zero_point": mx.zeros((17, 6), mx.int32)}
    with pytest.raises(UnsupportedTensorError, match="zero points"):
        read(write(tmp_path / "a", parts))


def test_large_scales_do_not_overflow(tmp_path: Path) -> None:
    """Before the scale of the matrix the weights are far beyond half precision."""
    parts = {
        "l.weight": mx.array(np.full((2, 8), 0x77, np.uint8)),
        "l.weight_scale": mx.array(np.full((2, 1), 0x7E, np.uint8)),
        "l.weight_scale_2": mx.array(1e3),
    }
    weight = read(write(tmp_path / "a", parts))["l.weight"]
    assert mx.array_equal(weight, mx.full((2, 16), 6 * 448e3))


@pytest.mark.parametrize("name", ["ModelOpt NVFP4", "FP8 of one scale", "FP8 by blocks", "MXFP4"])
def test_experts_may_be_stacked(name: str, tmp_path: Path) -> None:
    """Each with scales of its own; the second one's are twice the first one's where they can be."""
    case = CASES[name]
    twice = {n: a * 2 if a.dtype == mx.float32 else a for n, a in case.parts.items()}
    stacked = {n: mx.stack([array, twice[n]]) for n, array in case.parts.items()}
    weights = np.array(read(write(tmp_path / "a", stacked))["layer.weight"])
    assert np.array_equal(weights[0], case.weights)
    assert np.array_equal(weights[1], case.weights * (1 if name == "MXFP4" else 2))


# A checkpoint of several packings, as they are published: the MLP in NVFP4, attention in FP8 by
# rows or as a whole, the rest in 16 bits.
def mixed(tensors: Tensors, seed: int = 0) -> tuple[Tensors, Tensors]:
    """A model's tensors with matrices packed, and the same matrices dense."""
    packed, dense = dict(tensors), dict(tensors)
    for i, (name, array) in enumerate(sorted(tensors.items())):
        base, (rows, width) = name.removesuffix(".weight"), (*array.shape, 1)[:2]
        if ".mlp." in name:
            codes, scale = random_bytes(rows, width // 2, seed=i), numbers(rows, width // 16) & 0x3F
            weights = e2m1(codes) * repeated(e4m3(scale), 16)
            factor = np.float32(0.3 / np.abs(weights).std() / width**0.5)
            parts = {"weight": codes, "weight_scale": scale, "weight_scale_2": factor}
        elif ".self_attn." in name:
            codes = numbers(rows, width, seed=i) & 0xBF
            weights = e4m3(codes)
            factor = np.float32(1 / np.abs(weights).std() / width**0.5)
            parts = {"weight": codes, "weight_scale": factor, "input_scale": np.float32(3)}
        else:
            continue
        packed |= {f"{base}.{part}": mx.array(np.asarray(v)) for part, v in parts.items()}
        dense[name] = mx.array(weights * factor)
    return packed, dense


def test_a_mixed_checkpoint_is_the_model_of_its_weights(tmp_path: Path) -> None:
    """Through the whole of loading: the logits of a checkpoint with the same matrices dense."""
    folder = write_folder(tmp_path / "m", hidden_size=64)
    tensors = mx.load(str(folder / "model.safetensors"))
    assert isinstance(tensors, dict)
    logits = []
    for version in mixed(tensors):
        mx.save_safetensors(str(folder / "model.safetensors"), version)
        target = folder_model(folder).target
        hidden = target.forward(mx.array([1, 2, 3, 4]), target.make_cache())
        logits.append(target.logits(target.normalise(hidden)))
    assert mx.array_equal(logits[0], logits[1])
    assert mx.isfinite(logits[0]).all()


def test_what_is_asked_for_and_not_done_is_told(tmp_path: Path) -> None:
    """A packed attention cache, in either file that may say so."""
    folder = write(tmp_path / "a", config={"quantization_config": {"kv_cache_scheme": {"bits": 8}}})
    assert "kv_cache_scheme" in ignored_directives(folder)[0]
    other = write(tmp_path / "b")
    stated = {"quantization": {"kv_cache_quant_algo": "FP8", "quant_algo": "NVFP4"}}
    (other / "hf_quant_config.json").write_text(json.dumps(stated))
    assert "FP8" in ignored_directives(other)[0]
    assert ignored_directives(write(tmp_path / "c")) == []
