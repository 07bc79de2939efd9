"""A checkpoint folder with random weights, as mlx-lm loads it."""

import json
from pathlib import Path

import mlx.core as mx
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "vocab_size": 257,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "torch_dtype": "float16",
    "eos_token_id": 256,
}


def write_folder(path: Path, *, hidden_size: int = 64, more: tuple[str, ...] = ()) -> Path:
    """config.json, float16 weights and a byte-level tokenizer. more: names of further tensors."""
    path.mkdir(parents=True, exist_ok=True)
    config = {**CONFIG, "hidden_size": hidden_size, "intermediate_size": 2 * hidden_size}
    (path / "config.json").write_text(json.dumps(config))
    mx.random.seed(3)
    shapes = {**_shapes(hidden_size), **dict.fromkeys(more, (hidden_size,))}
    tensors = {
        name: (mx.random.normal(shape) / 8).astype(mx.float16) for name, shape in shapes.items()
    }
    mx.save_safetensors(str(path / "model.safetensors"), tensors, {"format": "mlx"})
    write_tokenizer(path)
    return path


def write_tokenizer(path: Path) -> None:
    """One of bytes and an end token, 257 in all."""
    _tokenizer().save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))


def _shapes(width: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (257, width),
        "model.norm.weight": (width,),
    }
    for i in range(2):
        block = {
            "input_layernorm": (width,),
            "post_attention_layernorm": (width,),
            "self_attn.q_proj": (width, width),
            "self_attn.k_proj": (width // 2, width),
            "self_attn.v_proj": (width // 2, width),
            "self_attn.o_proj": (width, width),
            "mlp.gate_proj": (2 * width, width),
            "mlp.up_proj": (2 * width, width),
            "mlp.down_proj": (width, 2 * width),
        }
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in block.items()}
    return shapes


def _tokenizer() -> tokenizers.Tokenizer:
    vocabulary = {character: id_ for id_, character in enumerate(ALPHABET)}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken("</s>", special=True, normalized=False)])
    return backend
