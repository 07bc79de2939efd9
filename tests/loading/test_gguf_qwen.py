"""The dense Qwen2 and Qwen3, and Llama 3.1, from GGUF: the logits of transformers' own models."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from mtplx.errors import UnsupportedTensorError
from mtplx.loading.gguf_file import open_gguf
from mtplx.loading.gguf_llama import llama_dims, llama_target
from mtplx.loading.gguf_tensors import gguf_tensors
from mtplx.models.llama import LlamaTarget
from mtplx.models.mlx_lm_twin import mlx_lm_twin
from tests.foreign import GGUF_NAMES, gguf_name, pairwise_rows, write_gguf
from tests.loading.gguf_conversion import TOKENIZER
from tests.tiny import close, random_prompt

Arrays = dict[str, NDArray[np.float32]]
PROMPT = random_prompt(40)
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
STRETCHED = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
MORE_NAMES = GGUF_NAMES | {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}


def stored_name(name: str) -> str:
    if not name.startswith("model.layers."):
        return gguf_name(name)
    _, _, layer, rest = name.split(".", 3)
    base, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{MORE_NAMES[base]}.{kind}"


def reference(arch: str, **more: Any) -> tuple[Arrays, NDArray[np.float32], Arrays]:
    """Random weights in Hugging Face's names, transformers' logits [T, V], rotary factors."""
    torch = pytest.importorskip("torch")
    import transformers

    title = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[arch]
    config = getattr(transformers, f"{title}Config")(**SIZES, rms_norm_eps=1e-6, **more)
    torch.manual_seed(0)
    model = getattr(transformers, f"{title}ForCausalLM")(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    with torch.inference_mode():
        logits = model(torch.tensor([PROMPT])).logits[0].numpy()
    weights = {name: value.detach().numpy() for name, value in model.named_parameters()}
    inverse = model.model.rotary_emb.inv_freq.numpy()
    plain = 1e4 ** (-np.arange(0, 8, 2) / 8)
    return weights, logits, {"rope_freqs.weight": (plain / inverse).astype(np.float32)}


def write(path: Path, arch: str, weights: Arrays, more: Arrays | None = None) -> Path:
    """As llama.cpp's converter does: for Llama rows of q and k in pairs, biases too."""
    heads = {"attn_q": 4, "attn_k": 2}
    stored = dict(more or {})
    for name, array in weights.items():
        new = stored_name(name)
        kind = new.split(".")[-2]
        rotates = arch == "llama" and kind in heads
        stored[new] = pairwise_rows(array, heads[kind]) if rotates else array
    metadata = {
        "block_count": 2,
        "context_length": 512,
        "embedding_length": 32,
        "feed_forward_length": 64,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 8,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e4,
        "vocab_size": 64,
    }
    fields = {f"{arch}.{key}": value for key, value in metadata.items()}
    return write_gguf(path, stored, fields | TOKENIZER, architecture=arch)


def read(path: Path, arch: str) -> LlamaTarget:
    file = open_gguf(path)
    return llama_target(gguf_tensors(file, packed=False), llama_dims(file.metadata), arch)


def logits_of(target: LlamaTarget) -> mx.array:
    hidden = target.forward(mx.array(PROMPT), target.make_cache())
    return target.logits(target.normalise(hidden))


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 8}),
    "llama with biases": ("llama", {"attention_bias": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    """Biases, norms of heads and the order of their rows."""
    arch, more = CASES[case]
    weights, expected, _ = reference(arch, **more)
    weights.pop("model.layers.0.self_attn.o_proj.bias", None)
    weights.pop("model.layers.1.self_attn.o_proj.bias", None)
    if case == "llama with biases":
        weights, expected = without_output_bias(more)
    target = read(write(tmp_path / "a.gguf", arch, weights), arch)
    assert np.abs(np.array(logits_of(target)) - expected).max() < 5e-5


def without_output_bias(more: dict[str, Any]) -> tuple[Arrays, NDArray[np.float32]]:
    """Llama with biases of q, k and v alone, which transformers has only together with another."""
    import torch
    import transformers

    config = transformers.LlamaConfig(**SIZES, rms_norm_eps=1e-6, **more)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    for layer in model.model.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.bias)
    with torch.inference_mode():
        logits = model(torch.tensor([PROMPT])).logits[0].numpy()
    weights = {name: value.detach().numpy() for name, value in model.named_parameters()}
    return {n: w for n, w in weights.items() if "o_proj.bias" not in n}, logits


def test_stretched_wavelengths_come_from_the_file(tmp_path: Path) -> None:
    """Llama 3.1's, and without them it would be another model."""
    weights, expected, factors = reference("llama", rope_parameters=STRETCHED)
    assert factors["rope_freqs.weight"].max() > 4
    target = read(write(tmp_path / "a.gguf", "llama", weights, factors), "llama")
    assert np.abs(np.array(logits_of(target)) - expected).max() < 5e-5
    plain = read(write(tmp_path / "b.gguf", "llama", weights), "llama")
    assert np.abs(np.array(logits_of(plain)) - expected).max() > 0.01


@pytest.mark.parametrize("case", ["qwen2", "qwen3"])
def test_wrong_readings_are_seen(case: str, tmp_path: Path) -> None:
    """Rows taken for pairs, and biases or norms left out, give other logits."""
    arch, more = CASES[case]
    weights, expected, _ = reference(arch, **more)
    path = write(tmp_path / "a.gguf", arch, weights)
    assert np.abs(np.array(logits_of(read(path, "llama"))) - expected).max() > 0.1
    fewer = {n: w for n, w in weights.items() if ".bias" not in n and "q_norm" not in n}
    if case == "qwen3":
        fewer = {n: w for n, w in fewer.items() if "k_norm" not in n}
    plain = read(write(tmp_path / "b.gguf", arch, fewer), arch)
    assert np.abs(np.array(logits_of(plain)) - expected).max() > 0.1


@pytest.mark.parametrize("case", ["qwen2", "qwen3"])
def test_mlx_lms_model_of_the_same_weights_agrees(case: str, tmp_path: Path) -> None:
    """So the two decode loops can be compared on it."""
    arch, more = CASES[case]
    weights, _, _ = reference(arch, **more)
    target = read(write(tmp_path / "a.gguf", arch, weights), arch)
    assert close(mlx_lm_twin(target)(mx.array(PROMPT)[None])[0], logits_of(target))


def test_a_bias_that_has_no_place_is_refused_by_name(tmp_path: Path) -> None:
    """Ignored, it would be another model."""
    weights, _, _ = reference("llama", attention_bias=True)
    with pytest.raises(UnsupportedTensorError, match=r"attn_output\.bias"):
        read(write(tmp_path / "a.gguf", "llama", weights), "llama")
