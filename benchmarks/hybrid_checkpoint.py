"""Writes a random hybrid of the 100M-parameter class: what its decoding costs, not what it says.

    python -m benchmarks.hybrid_checkpoint FOLDER

The layout is that of a Qwen 3.5 checkpoint with its MTP head: three gated-delta layers to one of
attention, tied embeddings, and a byte-level tokenizer whose other ids are never encoded to. Weights
are drawn with a fixed seed, small enough that activations stay in range.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

WIDTH, NUM_LAYERS, MLP = 640, 16, 1792
HEADS, KV_HEADS, HEAD_DIM = 10, 2, 128
KEY_HEADS, VALUE_HEADS, DELTA_DIM = 5, 10, 128
VOCABULARY = 32_768
INTERVAL = 4  # every so many layers one is attention
END = VOCABULARY - 1
DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16}


def configuration(dtype: str) -> dict[str, object]:
    """config.json."""
    text = {
        "model_type": "qwen3_5_text",
        "dtype": dtype,
        "hidden_size": WIDTH,
        "intermediate_size": MLP,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "linear_num_key_heads": KEY_HEADS,
        "linear_num_value_heads": VALUE_HEADS,
        "linear_key_head_dim": DELTA_DIM,
        "linear_value_head_dim": DELTA_DIM,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": INTERVAL,
        "vocab_size": VOCABULARY,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 8192,
        "mtp_num_hidden_layers": 1,
        "eos_token_id": END,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
        },
        "tie_word_embeddings": True,
    }
    return {
        "model_type": "qwen3_5",
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "tie_word_embeddings": True,
        "text_config": text,
    }


def shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of all tensors."""
    yield "model.language_model.embed_tokens.weight", (VOCABULARY, WIDTH)
    yield "model.language_model.norm.weight", (WIDTH,)
    for i in range(NUM_LAYERS):
        mixer = _attention() if (i + 1) % INTERVAL == 0 else _delta()
        for name, shape in [*mixer, *_rest()]:
            yield f"model.language_model.layers.{i}.{name}", shape
    yield "mtp.fc.weight", (WIDTH, 2 * WIDTH)
    for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        yield f"mtp.{norm}.weight", (WIDTH,)
    for name, shape in [*_attention(), *_rest()]:
        yield f"mtp.layers.0.{name}", shape


def _attention() -> list[tuple[str, tuple[int, ...]]]:
    return [
        ("self_attn.q_proj.weight", (2 * HEADS * HEAD_DIM, WIDTH)),  # queries and gates
        ("self_attn.k_proj.weight", (KV_HEADS * HEAD_DIM, WIDTH)),
        ("self_attn.v_proj.weight", (KV_HEADS * HEAD_DIM, WIDTH)),
        ("self_attn.o_proj.weight", (WIDTH, HEADS * HEAD_DIM)),
        ("self_attn.q_norm.weight", (HEAD_DIM,)),
        ("self_attn.k_norm.weight", (HEAD_DIM,)),
    ]


def _delta() -> list[tuple[str, tuple[int, ...]]]:
    value_size = VALUE_HEADS * DELTA_DIM
    channels = 2 * KEY_HEADS * DELTA_DIM + value_size
    return [
        ("linear_attn.in_proj_qkv.weight", (channels, WIDTH)),
        ("linear_attn.in_proj_z.weight", (value_size, WIDTH)),
        ("linear_attn.in_proj_a.weight", (VALUE_HEADS, WIDTH)),
        ("linear_attn.in_proj_b.weight", (VALUE_HEADS, WIDTH)),
        ("linear_attn.conv1d.weight", (channels, 1, 4)),
        ("linear_attn.A_log", (VALUE_HEADS,)),
        ("linear_attn.dt_bias", (VALUE_HEADS,)),
        ("linear_attn.norm.weight", (DELTA_DIM,)),
        ("linear_attn.out_proj.weight", (WIDTH, value_size)),
    ]


def _rest() -> list[tuple[str, tuple[int, ...]]]:
    return [
        ("input_layernorm.weight", (WIDTH,)),
        ("post_attention_layernorm.weight", (WIDTH,)),
        ("mlp.gate_proj.weight", (MLP, WIDTH)),
        ("mlp.up_proj.weight", (MLP, WIDTH)),
        ("mlp.down_proj.weight", (WIDTH, MLP)),
    ]


def tensor(name: str, shape: tuple[int, ...], key: mx.array, dtype: mx.Dtype) -> mx.array:
    """Random, of a size that keeps what it multiplies in range."""
    if name.endswith("A_log"):
        return mx.log(mx.random.uniform(1, 16, shape, key=key))
    if name.endswith("linear_attn.norm.weight"):  # the one norm that is not stored about zero
        return mx.ones(shape, dtype)
    scale = 0.02 if len(shape) == 1 or "embed" in name else shape[1] ** -0.5
    return (scale * mx.random.normal(shape, key=key)).astype(dtype)


def write(folder: Path, dtype: str) -> int:
    """Write the checkpoint; give its number of parameters."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = list(shapes())
    keys = mx.random.split(mx.random.key(0), len(listed))
    tensors = {
        name: tensor(name, shape, key, DTYPES[dtype])
        for (name, shape), key in zip(listed, keys, strict=True)
    }
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(configuration(dtype), indent=1))
    _tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    return sum(array.size for array in tensors.values())


def _tokenizer() -> tokenizers.Tokenizer:
    """Bytes, then ids that no text is encoded to, then the end token."""
    words = sorted(pre_tokenizers.ByteLevel.alphabet())
    words += [f"<unused{i}>" for i in range(len(words), END)]
    backend = tokenizers.Tokenizer(models.BPE({word: id_ for id_, word in enumerate(words)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    return backend


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    options = parser.parse_args()
    size = write(options.folder, options.dtype)
    print(f"{options.folder}: {size / 1e6:.0f}M parameters", file=sys.stderr)


if __name__ == "__main__":
    main()
