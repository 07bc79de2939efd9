"""Metadata of a llama in a GGUF file: sizes that cannot be meant, and what is not supported."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mtplx.errors import CheckpointError, UnsupportedTensorError
from mtplx.loading.gguf_file import open_gguf
from mtplx.loading.gguf_model import gguf_model
from tests.foreign import read_llama, write_llama
from tests.tiny import DIMS, tiny_target


@pytest.mark.parametrize("architecture", ["bert", "gptneox", "llama4"])
def test_another_architecture_is_refused_by_name(architecture: str, tmp_path: Path) -> None:
    """Its tensors may have the same names and mean something else."""
    path = write_llama(tmp_path, tiny_target(), architecture=architecture)
    with pytest.raises(UnsupportedTensorError, match=rf"'{architecture}'.*llama, qwen2"):
        gguf_model(open_gguf(path), 64, packed=False)


REQUIRED = [
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.layer_norm_rms_epsilon",
]


@pytest.mark.parametrize("key", [*REQUIRED, "vocab_size"])
def test_a_size_that_is_missing_is_named(key: str, tmp_path: Path) -> None:
    """Also the size of the vocabulary, where there are no tokens to count."""
    with pytest.raises(CheckpointError, match=rf"lacks llama\.{key}"):
        read_llama(write_llama(tmp_path, tiny_target(), metadata={f"llama.{key}": None}))


@pytest.mark.parametrize("value", [0, -1, [4, 4], "4", float("nan"), float("inf")])
@pytest.mark.parametrize("key", [*REQUIRED, "attention.head_count_kv", "rope.freq_base"])
def test_a_size_that_cannot_be_meant_is_named(key: str, value: object, tmp_path: Path) -> None:
    """Zero, negative, a list for every layer, text, not a number: with the value."""
    with pytest.raises(CheckpointError, match=rf"llama\.{key} = "):
        read_llama(write_llama(tmp_path, tiny_target(), metadata={f"llama.{key}": value}))


@pytest.mark.parametrize("sizes", [{"key_length": 7, "head_count": 4}, {"head_count_kv": 3}])
def test_heads_that_do_not_go_together_are_refused(sizes: dict[str, int], tmp_path: Path) -> None:
    """An odd head cannot be rotated, and groups of heads must be of one size."""
    fields: dict[str, Any] = {f"llama.attention.{key}": value for key, value in sizes.items()}
    fields["llama.rope.dimension_count"] = sizes.get("key_length", DIMS.head_dim)
    with pytest.raises(CheckpointError, match=r"heads of \d"):
        read_llama(write_llama(tmp_path, tiny_target(), metadata=fields))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expert_count", 8),
        ("attention.sliding_window", 4096),
        ("attention.scale", 0.5),
        ("attention.clamp_kqv", 8.0),
        ("logit_scale", 0.25),
        ("embedding_scale", 12.0),
        ("residual_scale", 0.2),
    ],
)
def test_what_a_llama_may_have_and_this_cannot_is_refused_by_name(
    key: str, value: float, tmp_path: Path
) -> None:
    """Ignoring it would give other tokens; unset or without effect it does no harm."""
    with pytest.raises(UnsupportedTensorError, match=rf"llama\.{key} is set"):
        read_llama(write_llama(tmp_path, tiny_target(), metadata={f"llama.{key}": value}))
    read_llama(write_llama(tmp_path, tiny_target(), metadata={f"llama.{key}": type(value)(0)}))


def test_a_stretch_of_positions_is_read_or_refused_by_name(tmp_path: Path) -> None:
    """A linear one divides every angle; others are not known here."""
    fields: dict[str, Any] = {"llama.rope.scaling.factor": 8.0}
    metadata = fields | {"llama.rope.scaling.type": "yarn"}
    with pytest.raises(UnsupportedTensorError, match=r"llama\.rope\.scaling\.type is 'yarn'"):
        read_llama(write_llama(tmp_path, tiny_target(), metadata=metadata))
    metadata = fields | {"llama.rope.scaling.type": "linear"}
    loaded = read_llama(write_llama(tmp_path, tiny_target(), metadata=metadata))
    assert loaded.dims.rope_factors == (8.0,) * (DIMS.head_dim // 2)


def test_half_rotated_heads_are_refused(tmp_path: Path) -> None:
    """Rotary embedding over a part of each head is another family."""
    fields = {"llama.rope.dimension_count": DIMS.head_dim // 2}
    with pytest.raises(UnsupportedTensorError, match="part of a head"):
        read_llama(write_llama(tmp_path, tiny_target(), metadata=fields))


def test_optional_keys_have_llama_cpps_defaults(tmp_path: Path) -> None:
    """As many key heads as heads, which share the hidden size, rotated whole, base 10,000."""
    target = tiny_target(dims=replace(DIMS, num_kv_heads=4))
    optional = [
        "attention.head_count_kv",
        "attention.key_length",
        "rope.freq_base",
        "rope.dimension_count",
    ]
    loaded = read_llama(
        write_llama(tmp_path, target, metadata={f"llama.{key}": None for key in optional})
    )
    assert loaded.dims == read_llama(write_llama(tmp_path, target)).dims


@pytest.mark.parametrize("num_tokens", [64, 60])
def test_a_vocabulary_may_be_smaller_than_the_model(num_tokens: int, tmp_path: Path) -> None:
    """Padding rows are common; without a stated size the tokens decide it."""
    tokens = [f"t{i}" for i in range(num_tokens)]
    fields: dict[str, Any] = {"tokenizer.ggml.tokens": tokens}
    assert read_llama(write_llama(tmp_path, tiny_target(), metadata=fields)).vocab_size == 64
    if num_tokens == 64:
        fields["llama.vocab_size"] = None
        assert read_llama(write_llama(tmp_path, tiny_target(), metadata=fields)).vocab_size == 64


def test_a_vocabulary_may_not_be_larger_than_the_model(tmp_path: Path) -> None:
    """A token without an embedding would read whatever lies behind it."""
    fields: dict[str, Any] = {"tokenizer.ggml.tokens": [f"t{i}" for i in range(65)]}
    with pytest.raises(CheckpointError, match=r"65 tokens.*64"):
        read_llama(write_llama(tmp_path, tiny_target(), metadata=fields))


def test_one_file_of_several_is_refused_under_another_name(tmp_path: Path) -> None:
    """Most of its tensors are elsewhere, though its metadata is whole."""
    parts = {"split.count": 3, "split.no": 0}
    with pytest.raises(CheckpointError, match=r"one of 3 files by its metadata and of 1 by its"):
        read_llama(write_llama(tmp_path, tiny_target(), metadata=parts))
    read_llama(write_llama(tmp_path, tiny_target(), metadata={"split.count": 1}))
