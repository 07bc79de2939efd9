"""FP8 experts of a layer in one tensor, named as transformers names them, stay packed."""

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mtplx.errors import CheckpointError
from mtplx.kernels.product import embed
from mtplx.kernels.rows import RowRun, joined_rows, num_rows_of
from mtplx.kernels.source import Maker
from mtplx.loading.describe import describe
from mtplx.loading.expanded_tensors import Manner, foreign_tensors
from mtplx.loading.native_folder import folder_model
from mtplx.models.family import Tensors
from mtplx.models.packed import held_arrays
from tests.kernels.test_packed_experts import (
    BOUND,
    CONFIG,
    EXPERTS,
    INNER,
    NORMS,
    PROMPT,
    SHAPES,
    WIDTH,
    experts_of,
    logits_of,
    opened,
)
from tests.loading.test_foreign_packing import Floats, e4m3, numbers
from tests.tiny import close

BLOCK, ACROSS = 32, 16  # rows and columns of a tile
FUSED = {"gate_up_proj": (2 * INNER, WIDTH), "down_proj": (WIDTH, INNER)}


def packed(rows: int, width: int, seed: int) -> tuple[dict[str, mx.array], Floats]:
    """Experts [E, rows, width] with a scale for each tile, and the weights that they stand for."""
    codes = numbers(EXPERTS, rows, width, seed=seed) & 0xBF
    shape = (EXPERTS, rows // BLOCK, width // ACROSS)
    scale = np.random.default_rng(seed).uniform(0.5, 2, shape).astype(np.float32) / width
    weights = e4m3(codes) * np.repeat(np.repeat(scale, BLOCK, 1), ACROSS, 2)
    return {"": mx.array(codes), "_scale_inv": mx.array(scale)}, weights


def write(path: Path, tensors: Tensors) -> Path:
    """Qwen3-VL's text model, whose files have its experts [E, in, out]."""
    path.mkdir()
    told = {"weight_block_size": [ACROSS, BLOCK], "quant_method": "fp8"}
    config = {"model_type": "qwen3_vl_moe", "quantization_config": told}
    text = CONFIG | {"model_type": "qwen3_vl_moe_text"}
    (path / "config.json").write_text(json.dumps(config | {"text_config": text}))
    mx.save_safetensors(str(path / "model.safetensors"), tensors)
    return path


def folders(path: Path) -> tuple[Path, Path, int]:
    """With packed experts, with the same ones dense, and how many bytes are packed."""
    random = np.random.default_rng(0)
    others = {n: random.normal(size=s).astype(np.float32) / s[1] ** 0.5 for n, s in SHAPES.items()}
    others |= {n: random.uniform(0.5, 1.5, size).astype(np.float32) for n, size in NORMS.items()}
    both: list[Tensors] = [{}, {}]
    for tensors in both:
        for name, array in others.items():
            tensors[f"{name}.weight".replace("model.", "model.language_model.")] = mx.array(array)
    num_bytes = 0
    for seed, (name, (rows, width)) in enumerate(FUSED.items()):
        parts, weights = packed(rows, width, seed)
        base = f"model.language_model.layers.0.mlp.experts.{name}"
        for ending, array in parts.items():
            both[0][f"{base}{ending}"] = mx.contiguous(array.swapaxes(1, 2))
            num_bytes += array.nbytes
        both[1][base] = mx.contiguous(mx.array(weights).swapaxes(1, 2))
    return write(path / "packed", both[0]), write(path / "dense", both[1]), num_bytes


def test_experts_with_rows_for_columns_stay_packed(maker: Maker, tmp_path: Path) -> None:
    """The logits of dense ones, few rows and many; what is held is what is on disk."""
    folder, dense, num_bytes = folders(tmp_path)
    model, expected = opened(folder, maker), folder_model(dense)
    assert model.note is None
    assert describe(folder, packed=True).expanded is None
    assert len(experts_of(model)) == 3
    for rows in (1, len(PROMPT)):
        assert close(logits_of(model, rows), logits_of(expected, rows), bound=BOUND)
    held = sum(array.nbytes for array in held_arrays(model.target.model))
    assert num_bytes * 0.99 < held < num_bytes * 1.1


def test_a_cpu_expands_them(tmp_path: Path) -> None:
    """To the weights that they stand for."""
    folder, dense, _ = folders(tmp_path)
    assert mx.array_equal(logits_of(folder_model(folder), 4), logits_of(folder_model(dense), 4))


HALF, COLUMNS = 40, 48  # a tile of 32 reaches over the end of gate
NAME = "layer.experts.gate_up_proj"
SHAPE = (EXPERTS, 2 * HALF, COLUMNS)
# Of scales by what they are for, with how many rows and columns share one of gate's or up's.
SCALES: dict[str, tuple[tuple[int, ...], tuple[int, int]]] = {
    "the tensor": ((), SHAPE[1:]),
    "an expert": ((EXPERTS, 1, 1), SHAPE[1:]),
    "gate and up": ((EXPERTS, 2, 1), (HALF, COLUMNS)),
    "a row": ((EXPERTS, 2 * HALF, 1), (1, COLUMNS)),
    "a tile": ((EXPERTS, 3, 2), (BLOCK, BLOCK)),
    "a tile of gate or of up": ((EXPERTS, 4, 2), (BLOCK, BLOCK)),
}


def scaled(kind: str) -> tuple[Tensors, Floats]:
    """Fused experts of such scales, and their weights."""
    shape, (rows, columns) = SCALES[kind]
    codes = numbers(*SHAPE, seed=3) & 0xBF
    scale = np.random.default_rng(4).uniform(0.5, 2, shape).astype(np.float32)
    wide = np.repeat(np.repeat(np.broadcast_to(scale, shape or (1, 1, 1)), rows, 1), columns, 2)
    if kind == "a tile of gate or of up":
        wide = np.concatenate([wide[:, :HALF], wide[:, 2 * BLOCK :][:, :HALF]], axis=1)
    weights = e4m3(codes) * wide[:, : SHAPE[1], : SHAPE[2]]
    tensors = {NAME: mx.array(codes), f"{NAME}_scale_inv": mx.array(scale)}
    return tensors | {f"{NAME}_activation_scale": mx.ones(EXPERTS)}, weights


@pytest.mark.parametrize("kind", SCALES)
def test_a_scale_is_for_what_its_shape_says(kind: str, maker: Maker) -> None:
    """Expanded to the bit, packed to the last but one."""
    tensors, weights = scaled(kind)
    found = foreign_tensors(tensors, Manner(keep=True, maker=maker, block=(BLOCK, BLOCK)))
    assert found.others == {}
    assert np.array_equal(np.array(found.expanded()[NAME]), weights)
    matrix = found.matrices[NAME].matrix
    assert matrix is not None
    num_rows = num_rows_of(matrix.weight)
    whole = joined_rows([RowRun(matrix.weight, 0, num_rows)], ())
    assert whole is not None
    rows = np.array(embed(mx.arange(num_rows).astype(mx.uint32), whole, mx.float32, maker=maker))
    np.testing.assert_allclose(rows.reshape(SHAPE), weights, rtol=3e-7)


def test_a_scale_for_each_column_is_refused() -> None:
    """Though a square matrix has as many rows."""
    shape = (EXPERTS, COLUMNS, COLUMNS)
    tensors = {
        "layer.experts.down_proj": mx.zeros(shape, mx.uint8),
        "layer.experts.down_proj_scale": mx.ones((EXPERTS, 1, COLUMNS)),
    }
    with pytest.raises(CheckpointError, match=r"down_proj.*1.*48"):
        foreign_tensors(tensors, Manner())


@pytest.mark.parametrize("name", ["altup.correct_output_scale", "per_layer_input_scale"])
def test_a_parameter_that_is_called_a_scale_stays(name: str) -> None:
    """Of Gemma 3n, beside matrices whose inputs have scales too."""
    tensors, _ = scaled("a row")
    tensors |= {f"layer.{name}": mx.ones(4), "layer.q_proj.input_scale": mx.ones(1)}
    assert foreign_tensors(tensors, Manner()).others.keys() == {f"layer.{name}"}


def test_fused_experts_without_scales_are_refused_by_name() -> None:
    """Bytes alone would be taken for weights."""
    codes = {NAME: mx.zeros(SHAPE, mx.uint8)}
    with pytest.raises(CheckpointError, match=r"gate_up_proj is packed, and .*proj_scale is not"):
        foreign_tensors(codes, Manner())
