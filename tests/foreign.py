"""A llama in the hands of other programs: its weights under their names, their models of it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import gguf
import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from mtplx.kernels.source import Maker, metal
from mtplx.loading.gguf_file import open_gguf
from mtplx.loading.gguf_llama import llama_dims, llama_target
from mtplx.loading.gguf_tensors import gguf_tensors
from mtplx.models.llama import LlamaDims, LlamaTarget

Tensors = dict[str, NDArray[np.float32]]
Number = TypeVar("Number", bound=np.generic)


def hf_tensors(target: LlamaTarget) -> Tensors:
    """The weights under Hugging Face's names, rows of q and k in half-split rotary order."""
    dims = target.dims
    q_rows, kv_rows = dims.num_heads * dims.head_dim, dims.num_kv_heads * dims.head_dim
    arrays = {
        "model.embed_tokens.weight": target.embedding.arrays()[0],
        "model.norm.weight": target.final_norm,
        "lm_head.weight": target.lm_head.arrays()[0],
    }
    for i, block in enumerate(target.blocks):
        q, k, v = mx.split(block.qkv.arrays()[0], [q_rows, q_rows + kv_rows])
        gate, up = mx.split(block.gate_up.arrays()[0], 2)
        named = {
            "input_layernorm": block.attention_norm,
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.o_proj": block.output.arrays()[0],
            "post_attention_layernorm": block.mlp_norm,
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": block.down.arrays()[0],
        }
        arrays |= {f"model.layers.{i}.{name}.weight": array for name, array in named.items()}
    return {name: np.array(array) for name, array in arrays.items()}


def hf_config(dims: LlamaDims) -> dict[str, Any]:
    """What config.json says of a llama of these sizes."""
    return {
        "model_type": "llama",
        "hidden_size": dims.hidden_size,
        "num_hidden_layers": dims.num_layers,
        "intermediate_size": dims.mlp_size,
        "num_attention_heads": dims.num_heads,
        "num_key_value_heads": dims.num_kv_heads,
        "head_dim": dims.head_dim,
        "rms_norm_eps": dims.norm_eps,
        "vocab_size": dims.vocab_size,
        "rope_theta": dims.rope_base,
        "max_position_embeddings": dims.context_length,
        "tie_word_embeddings": False,
    }


def mlx_lm_llama(target: LlamaTarget) -> Any:
    """mlx-lm's model with these weights."""
    from mlx_lm.models import llama

    model = llama.Model(llama.ModelArgs(**hf_config(target.dims)))
    model.load_weights([(name, mx.array(array)) for name, array in hf_tensors(target).items()])
    return model


def transformers_logits(
    dims: LlamaDims, tensors: Tensors, token_ids: list[int], *, tied: bool = False
) -> NDArray[np.float32]:
    """[T, V], of transformers' model in float32 with these weights."""
    torch = pytest.importorskip("torch")
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**(hf_config(dims) | {"tie_word_embeddings": tied}))
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    weights = {name: torch.from_numpy(array) for name, array in tensors.items()}
    if tied:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    with torch.inference_mode():
        logits = model.eval()(torch.tensor([token_ids])).logits[0]
    return np.asarray(logits.numpy())


GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
ENDS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def gguf_name(name: str) -> str:
    """What llama.cpp calls a tensor that Hugging Face calls `name`."""
    if name in ENDS:
        return ENDS[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{GGUF_NAMES[rest.removesuffix('.weight')]}.weight"


def pairwise_rows(weight: NDArray[Number], num_heads: int) -> NDArray[Number]:
    """Rows as llama.cpp stores them: of each head, those that rotate together side by side."""
    stored, size = np.empty_like(weight), len(weight) // num_heads
    for head in range(0, len(weight), size):
        for i in range(size // 2):
            stored[head + 2 * i] = weight[head + i]
            stored[head + 2 * i + 1] = weight[head + i + size // 2]
    return stored


def stored_tensors(target: LlamaTarget) -> Tensors:
    """The weights as they stand in a GGUF file, in float32."""
    heads = {"attn_q": target.dims.num_heads, "attn_k": target.dims.num_kv_heads}
    stored: Tensors = {}
    for name, array in hf_tensors(target).items():
        new = gguf_name(name)
        kind = new.split(".")[-2]
        stored[new] = pairwise_rows(array, heads[kind]) if kind in heads else array
    return stored


def llama_metadata(dims: LlamaDims) -> dict[str, Any]:
    """The keys that a llama in a GGUF file has to have, and some that it may have."""
    return {
        "llama.block_count": dims.num_layers,
        "llama.context_length": dims.context_length,
        "llama.embedding_length": dims.hidden_size,
        "llama.feed_forward_length": dims.mlp_size,
        "llama.attention.head_count": dims.num_heads,
        "llama.attention.head_count_kv": dims.num_kv_heads,
        "llama.attention.key_length": dims.head_dim,
        "llama.attention.layer_norm_rms_epsilon": dims.norm_eps,
        "llama.rope.freq_base": dims.rope_base,
        "llama.rope.dimension_count": dims.head_dim,
        "llama.vocab_size": dims.vocab_size,
    }


def write_gguf(
    path: Path,
    tensors: Mapping[str, NDArray[Any]],
    metadata: Mapping[str, Any],
    kind_of: Callable[[str], str] = lambda name: "F32",
    architecture: str = "llama",
) -> Path:
    """A file of these tensors, each stored as the type that `kind_of` names.

    An array of bytes is stored as it is: [rows, bytes of a row].
    """
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        counts = type(value) is int and value >= 0  # llama.cpp reads counts as unsigned alone
        field = gguf.GGUFValueType.UINT32 if counts else gguf.GGUFValueType.get_type(value)
        writer.add_key_value(key, value, field)
    for name, array in tensors.items():
        kind = gguf.GGMLQuantizationType[kind_of(name)]
        raw = array if array.dtype == np.uint8 else gguf.quants.quantize(array, kind)
        writer.add_tensor(name, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_llama(
    folder: Path,
    target: LlamaTarget,
    kind_of: Callable[[str], str] = lambda name: "F32",
    *,
    tensors: Mapping[str, NDArray[Any] | None] | None = None,
    metadata: Mapping[str, Any] | None = None,
    architecture: str = "llama",
) -> Path:
    """The target as a file, with some tensors and keys put in place of its own, or None of them."""
    stored = stored_tensors(target) | dict(tensors or {})
    fields = llama_metadata(target.dims) | dict(metadata or {})
    return write_gguf(
        folder / "tiny.gguf",
        {name: array for name, array in stored.items() if array is not None},
        {key: value for key, value in fields.items() if value is not None},
        kind_of,
        architecture,
    )


def read_llama(path: Path, *, packed: bool = False, maker: Maker = metal) -> LlamaTarget:
    file = open_gguf(path)
    tensors = gguf_tensors(file, packed=packed, maker=maker)
    return llama_target(tensors, llama_dims(file.metadata))
