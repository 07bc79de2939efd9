"""Originals in blocks of FP8, as DeepSeek-V3 is published: they are what they stand for."""

from pathlib import Path

import mlx.core as mx
import pytest

from mtplx.loading.native_folder import FolderModel, folder_model
from tests.families.assembled import VOCAB_SIZE, Recipe, assemble, write_checkpoint
from tests.families.checkpoints import Tensors, read, write
from tests.families.test_deepseek import RECIPE
from tests.families.test_glm import RECIPES
from tests.tiny import random_prompt

BLOCK = 32
LARGEST = 448  # of E4M3
KEPT = ("norm.weight", "gate.weight", "eh_proj.weight", "embed_tokens.weight", "head.weight")


def packed(weight: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """Codes [N, K] uint8, scales [N / 32, K / 32] and the weight that they stand for."""
    (rows, columns), room = weight.shape, [(0, -size % BLOCK) for size in weight.shape]
    blocks = mx.unflatten(mx.unflatten(mx.pad(weight, room), 1, (-1, BLOCK)), 0, (-1, BLOCK))
    scales = mx.max(mx.abs(blocks), axis=(1, 3)) / LARGEST
    spread = mx.repeat(mx.repeat(scales, BLOCK, axis=0), BLOCK, axis=1)[:rows, :columns]
    codes = mx.to_fp8(weight / spread)
    return codes, scales, mx.from_fp8(codes, dtype=mx.float32) * spread


def written(tensors: Tensors) -> tuple[Tensors, Tensors]:
    """The tensors in FP8, and what they stand for."""
    small: Tensors = {}
    meant: Tensors = {}
    for name, array in tensors.items():
        small[name] = meant[name] = array
        if array.ndim == 2 and not name.endswith(KEPT):
            small[name], small[f"{name}_scale_inv"], meant[name] = packed(array)
    return small, meant


def said(model: FolderModel) -> tuple[mx.array, mx.array]:
    """Logits of the trunk, and of the head on its hidden states."""
    assert model.head is not None, model.no_head_reason
    tokens = mx.array(random_prompt(20, vocab_size=VOCAB_SIZE))
    hidden = model.target.forward(tokens, model.target.make_cache())
    after, head = model.target.normalise(hidden), model.head.head
    rows = head.run(0, tokens[1:], after[:-1], head.make_cache()[0])
    return model.target.logits(after), head.logits(0, rows.output)


@pytest.mark.parametrize("recipe", [RECIPE, RECIPES["glm4_moe"]], ids=["deepseek", "glm"])
def test_blocks_of_fp8_are_what_they_stand_for(recipe: Recipe, tmp_path: Path) -> None:
    """Trunk and head give the logits of the same numbers in float32."""
    original = write_checkpoint(assemble(recipe), tmp_path / "original")
    tensors, config = read(original)
    small, meant = written(tensors)
    stated = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}
    config_of_small = {**config, "quantization_config": stated}
    found = folder_model(write(tmp_path / "fp8", config_of_small, {"model.safetensors": small}))
    expected = folder_model(write(tmp_path / "dense", config, {"model.safetensors": meant}))
    for one, other in zip(said(found), said(expected), strict=True):
        assert mx.array_equal(one, other).item()
