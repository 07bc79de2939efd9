"""A llama in a GGUF file becomes the model that it was made from, or an error by name."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import mlx.core as mx
import numpy as np
import pytest

from mtplx.errors import CheckpointError, UnsupportedTensorError
from mtplx.models.llama import LlamaDims, LlamaTarget
from mtplx.models.matrix import AffineMatrix, DenseMatrix
from mtplx.state import DecodeState
from tests.foreign import (
    ENDS,
    GGUF_NAMES,
    Tensors,
    gguf_name,
    hf_tensors,
    read_llama,
    stored_tensors,
    transformers_logits,
    write_llama,
)
from tests.kernels.hosts import fast
from tests.kernels.platforms import needs_linux
from tests.tiny import DIMS, finish, random_prompt, same, start, tiny_target

WIDE_HEADS = replace(DIMS, head_dim=16)  # q is wider than the hidden state
PROMPT = random_prompt(20)


def logits_of(target: LlamaTarget, token_ids: list[int]) -> mx.array:
    hidden = target.forward(mx.array(token_ids), target.make_cache())
    return target.logits(target.normalise(hidden))


def matrices_as(kind: str) -> Callable[[str], str]:
    return lambda name: "F32" if "norm" in name else kind


def rounded(target: LlamaTarget, kind_of: Callable[[str], str]) -> LlamaTarget:
    """The target with the weights that storing it in these types leaves."""

    def stored(name: str, weight: mx.array) -> DenseMatrix:
        kind = gguf.GGMLQuantizationType[kind_of(name)]
        raw = gguf.quants.quantize(np.array(weight), kind)
        return DenseMatrix(mx.array(gguf.quants.dequantize(raw, kind)))

    def joined(names: str, weight: mx.array, *ends: int) -> DenseMatrix:
        parts = zip(names.split(), mx.split(weight, list(ends)), strict=True)
        return DenseMatrix(mx.concatenate([stored(*part).weight for part in parts]))

    dims = target.dims
    q_rows, kv_rows = dims.num_heads * dims.head_dim, dims.num_kv_heads * dims.head_dim
    blocks = tuple(
        replace(
            block,
            qkv=joined("attn_q attn_k attn_v", block.qkv.arrays()[0], q_rows, q_rows + kv_rows),
            output=stored("attn_output", block.output.arrays()[0]),
            gate_up=joined("ffn_gate ffn_up", block.gate_up.arrays()[0], dims.mlp_size),
            down=stored("ffn_down", block.down.arrays()[0]),
        )
        for block in target.blocks
    )
    return replace(
        target,
        embedding=stored("token_embd", target.embedding.arrays()[0]),
        blocks=blocks,
        lm_head=stored("output", target.lm_head.arrays()[0]),
    )


GROUPED = replace(DIMS, mlp_size=64)  # every width a multiple of 32


@pytest.mark.parametrize("dims", [DIMS, WIDE_HEADS, replace(DIMS, num_kv_heads=4)])
def test_a_float_file_is_the_model_it_was_made_from(dims: LlamaDims, tmp_path: Path) -> None:
    """Rows of q and k are put back: equal logits, bit for bit, for any shape of heads."""
    target = tiny_target(dims=dims)
    loaded = read_llama(write_llama(tmp_path, target))
    assert replace(loaded.dims, norm_eps=dims.norm_eps) == dims
    assert loaded.dims.norm_eps == pytest.approx(dims.norm_eps)
    expected = replace(target, dims=loaded.dims)  # eps is rounded to float32 in the file
    assert mx.array_equal(logits_of(loaded, PROMPT), logits_of(expected, PROMPT))


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_1", "Q4_0"])
def test_a_file_of_any_type_is_the_model_of_its_rounded_weights(kind: str, tmp_path: Path) -> None:
    """Expanded on loading: equal bit for bit to the dequantised weights in Hugging Face's order."""
    target = tiny_target(dims=GROUPED)
    loaded = read_llama(write_llama(tmp_path, target, matrices_as(kind)))
    expected = replace(rounded(target, matrices_as(kind)), dims=loaded.dims)
    assert mx.array_equal(logits_of(loaded, PROMPT), logits_of(expected, PROMPT))


def test_rows_that_are_not_put_back_would_be_seen(tmp_path: Path) -> None:
    """The comparison has teeth: q and k in Hugging Face's order in the file give other logits."""
    target = tiny_target()
    names = {"blk.0.attn_q.weight": "q", "blk.0.attn_k.weight": "k"}
    unchanged = {
        name: hf_tensors(target)[f"model.layers.0.self_attn.{short}_proj.weight"]
        for name, short in names.items()
    }
    loaded = read_llama(write_llama(tmp_path, target, tensors=unchanged))
    assert mx.abs(logits_of(loaded, PROMPT) - logits_of(target, PROMPT)).max() > 0.1


def mixed(name: str) -> str:
    """Types that change within what is stacked, as converters like to have it."""
    odd = {"attn_v": "Q8_0", "ffn_up": "Q4_0", "token_embd": "Q8_0", "output": "BF16"}
    kind = name.removesuffix(".weight").split(".")[-1]
    return odd.get(kind, matrices_as("Q4_1")(name))


@needs_linux
@pytest.mark.parametrize("kind_of", [matrices_as("Q4_1"), mixed], ids=["one type", "mixed"])
def test_a_packed_model_is_the_expanded_one(kind_of: Callable[[str], str], tmp_path: Path) -> None:
    """Blocks kept packed, of one type or of several side by side: equal up to rounding."""
    path = write_llama(tmp_path, tiny_target(dims=GROUPED), kind_of)
    dense, packed = read_llama(path), read_llama(path, packed=True, maker=fast)
    assert isinstance(packed.embedding, AffineMatrix)
    difference = mx.abs(logits_of(packed, PROMPT) - logits_of(dense, PROMPT)).max()
    assert difference.item() < 1e-4  # type: ignore[operator]
    prompt = random_prompt(8)
    replies = [finish(start(DecodeState(target), prompt)) for target in (dense, packed)]
    assert replies[0] == replies[1]
    assert sum(a.nbytes for a in packed.arrays()) < sum(a.nbytes for a in dense.arrays()) / 3


def test_an_lm_head_that_is_not_there_is_the_embedding(tmp_path: Path) -> None:
    """Tied weights are shared, not read twice."""
    target = tiny_target()
    loaded = read_llama(write_llama(tmp_path, target, tensors={"output.weight": None}))
    assert loaded.lm_head is loaded.embedding
    tied = replace(target, lm_head=target.embedding, dims=loaded.dims)
    assert same(logits_of(loaded, PROMPT), logits_of(tied, PROMPT))


def test_every_tensor_is_needed(tmp_path: Path) -> None:
    """Whichever is missing, it is named; but for an lm_head, which can be tied."""
    target = tiny_target()
    for name in stored_tensors(target):
        if name != "output.weight":
            with pytest.raises(CheckpointError, match=rf"no tensor {name}"):
                read_llama(write_llama(tmp_path, target, tensors={name: None}))


def spoiled(name: str, array: np.ndarray[Any, np.dtype[np.float32]]) -> list[Any]:
    """The array in shapes that it must not have."""
    if array.ndim == 1:
        return [array[:-1], np.concatenate([array, array]), array[None]]
    return [array[:-2], np.concatenate([array, array[:2]]), array[:, :-1], array[0], array[None]]


def test_every_tensor_has_one_shape(tmp_path: Path) -> None:
    """Rows or columns too few or too many, a dimension missing or added: named with both shapes."""
    target = tiny_target()
    for name, array in stored_tensors(target).items():
        if name.startswith("blk.1."):
            continue
        for wrong in spoiled(name, array):
            with pytest.raises(CheckpointError, match=rf"{name} is \(.*asks for \("):
                read_llama(write_llama(tmp_path, target, tensors={name: wrong}))


@pytest.mark.parametrize(
    "name",
    ["blk.0.attn_output.bias", "blk.0.ffn_up.bias", "blk.2.ffn_up.weight", "cls.weight"],
)
def test_a_tensor_that_nothing_reads_is_refused_by_name(name: str, tmp_path: Path) -> None:
    """A bias or a norm that is ignored would make it another model."""
    with pytest.raises(UnsupportedTensorError, match=name):
        read_llama(write_llama(tmp_path, tiny_target(), tensors={name: np.ones(32, np.float32)}))


PROMPTS = [
    [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198],
    [1604, 1380, 24, 79, 711, 198, 253, 1003, 701],
    list(range(300, 420)),
]


def default_weights(path: Path) -> Tensors:
    """Every tensor of a file in float32 under Hugging Face's names, by way of numpy alone."""
    tensors: Tensors = {}
    layers = range(30)
    names = [*ENDS, *(f"model.layers.{i}.{name}.weight" for i in layers for name in GGUF_NAMES)]
    inverse = {gguf_name(name): name for name in names}
    for tensor in gguf.GGUFReader(path).tensors:
        array = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if tensor.name.endswith(("attn_q.weight", "attn_k.weight")):
            pairs = array.reshape(-1, 32, 2, array.shape[1])  # heads of 64
            array = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(array.shape)
        tensors[inverse[tensor.name]] = array
    return tensors


@pytest.mark.slow
def test_the_default_models_logits_are_those_of_transformers(smollm2_path: Path) -> None:
    """Real weights and prompts, against torch in float32: close, and the same best tokens."""
    target, weights = read_llama(smollm2_path), default_weights(smollm2_path)
    for prompt in PROMPTS:
        expected = transformers_logits(target.dims, weights, prompt, tied=True)
        logits = np.array(logits_of(target, prompt))
        assert np.abs(logits - expected).max() < 5e-4
        assert np.array_equal(logits.argmax(axis=-1), expected.argmax(axis=-1))
