"""A whole checkpoint of a few hundred kilobytes, and an MTP head for it, as files.

Its weights are random and its vocabulary is single bytes, so what it says is noise: much of it is
half characters, which is what text handling has to be tried with.
"""

from pathlib import Path

import gguf
import mlx.core as mx
import numpy as np
import numpy.typing as npt
from tokenizers import pre_tokenizers

from mtplx.loading.fingerprint import fingerprint
from mtplx.loading.head_file import FORMAT, head_shapes
from mtplx.models.llama import LlamaDims

Weights = npt.NDArray[np.float32]
SPECIAL = ["<|start|>", "<|end|>"]
TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }}: {{ message.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant: {% endif %}"
)
TOKENS = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "ab"]
DIMS = LlamaDims(
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    mlp_size=64,
    vocab_size=len(TOKENS),
    context_length=1024,
    rope_base=10_000.0,
    norm_eps=1e-5,
)


def write_model(
    path: Path,
    *,
    template: str | None = TEMPLATE,
    odd_type: bool = False,
    context_length: int = DIMS.context_length,
) -> Path:
    """A llama-type GGUF file in float32. odd_type: one matrix is of integers, as in no model."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("Tiny")
    writer.add_license("cc0-1.0")
    writer.add_context_length(context_length)
    writer.add_embedding_length(DIMS.hidden_size)
    writer.add_block_count(DIMS.num_layers)
    writer.add_feed_forward_length(DIMS.mlp_size)
    writer.add_head_count(DIMS.num_heads)
    writer.add_head_count_kv(DIMS.num_kv_heads)
    writer.add_layer_norm_rms_eps(DIMS.norm_eps)
    writer.add_rope_freq_base(DIMS.rope_base)
    writer.add_vocab_size(DIMS.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(1)
    if template is not None:
        writer.add_chat_template(template)
    rng = np.random.default_rng(5)
    for name, shape in _shapes().items():
        odd = odd_type and name == "blk.0.attn_q.weight"
        writer.add_tensor(name, _array(rng, shape).astype(np.int32 if odd else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_head(path: Path, model: Path, dims: LlamaDims = DIMS) -> Path:
    """A random MTP head for the model at `model`, drafting from all of its vocabulary."""
    rng = np.random.default_rng(6)
    shapes = head_shapes(dims, 1)
    tensors = {name: mx.array(_array(rng, shape)) for name, shape in shapes.items()}
    tensors["mtp.shortlist"] = mx.arange(dims.vocab_size, dtype=mx.int32)
    mx.save_safetensors(str(path), tensors, {"format": FORMAT, "trunk": fingerprint(model)})
    return path


def _shapes() -> dict[str, tuple[int, ...]]:
    width, kv_rows = DIMS.hidden_size, DIMS.num_kv_heads * DIMS.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (DIMS.vocab_size, width),
        "output_norm.weight": (width,),
    }
    for i in range(DIMS.num_layers):
        block = {
            "attn_norm": (width,),
            "attn_q": (width, width),
            "attn_k": (kv_rows, width),
            "attn_v": (kv_rows, width),
            "attn_output": (width, width),
            "ffn_norm": (width,),
            "ffn_gate": (DIMS.mlp_size, width),
            "ffn_up": (DIMS.mlp_size, width),
            "ffn_down": (width, DIMS.mlp_size),
        }
        shapes |= {f"blk.{i}.{name}.weight": shape for name, shape in block.items()}
    return shapes


def _array(rng: np.random.Generator, shape: tuple[int, ...]) -> Weights:
    if len(shape) == 1:
        return np.asarray(rng.uniform(0.5, 1.5, shape), np.float32)
    return np.asarray(rng.normal(size=shape) * (1.5 / shape[1] ** 0.5), np.float32)
