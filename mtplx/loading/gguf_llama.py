"""A llama-type GGUF to a `LlamaTarget`: llama, mistral, and the dense qwen2 and qwen3."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import mlx.core as mx

from mtplx.errors import CheckpointError, UnsupportedTensorError
from mtplx.loading.gguf_tensors import GgufTensors, Rows
from mtplx.models.llama import LlamaBlock, LlamaDims, LlamaTarget

# Whether the file has the rows of q and k in pairs that rotate together, or in halves.
PAIRWISE = {"llama": True, "qwen2": False, "qwen3": False}
UNSUPPORTED = (  # llama.cpp's meaning of these architectures has room for more
    "expert_count",
    "attention.sliding_window",
    "attention.scale",
    "attention.clamp_kqv",
    "embedding_scale",
    "residual_scale",
    "logit_scale",
)


def llama_dims(metadata: Mapping[str, object]) -> LlamaDims:
    """Sizes from the metadata of one of the architectures of `PAIRWISE`.

    Raises CheckpointError for a key that is missing or cannot be meant, and
    UnsupportedTensorError, by name, for what llama.cpp supports and this does not.
    """
    arch = str(metadata.get("general.architecture"))
    _refuse_unsupported(metadata, arch)

    def get(key: str, default: float | None = None) -> float:
        value = metadata.get(f"{arch}.{key}", default)
        if value is None:
            raise CheckpointError(f"The file's metadata lacks {arch}.{key}. Fetch it again.")
        if not isinstance(value, int | float) or not 0 < value < 2**31:
            raise CheckpointError(
                f"The file's metadata has {arch}.{key} = {value!r}; one positive number is needed."
            )
        return value

    num_heads, hidden_size = int(get("attention.head_count")), int(get("embedding_length"))
    head_dim = int(get("attention.key_length", hidden_size / num_heads))
    if int(get("rope.dimension_count", head_dim)) != head_dim:
        raise UnsupportedTensorError("Rotary embedding over part of a head is not supported here.")
    num_kv_heads = int(get("attention.head_count_kv", num_heads))
    if head_dim % 2 or num_heads % num_kv_heads:
        raise CheckpointError(
            f"The file's metadata has {num_heads} heads of {head_dim} for {num_kv_heads} of keys; "
            "a head's size must be even, and the second must divide the first. Fetch it again."
        )
    return LlamaDims(
        hidden_size=hidden_size,
        num_layers=int(get("block_count")),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        mlp_size=int(get("feed_forward_length")),
        vocab_size=_vocab_size(metadata, get),
        context_length=int(get("context_length")),
        rope_base=get("rope.freq_base", 10000.0),
        norm_eps=get("attention.layer_norm_rms_epsilon"),
        rope_factors=_linear_stretch(metadata.get(f"{arch}.rope.scaling.factor"), head_dim),
    )


def _linear_stretch(factor: object, head_dim: int) -> tuple[float, ...]:
    return (float(factor),) * (head_dim // 2) if isinstance(factor, float) and factor > 1 else ()


def _refuse_unsupported(metadata: Mapping[str, object], arch: str) -> None:
    for key in UNSUPPORTED:
        if metadata.get(f"{arch}.{key}"):
            raise UnsupportedTensorError(f"{arch}.{key} is set, which is not supported yet.")
    kind = metadata.get(f"{arch}.rope.scaling.type", "none")
    if metadata.get(f"{arch}.rope.scaling.factor", 1.0) not in (0, 1) and kind != "linear":
        raise UnsupportedTensorError(
            f"{arch}.rope.scaling.type is {kind!r}, which is not supported yet."
        )


def _vocab_size(metadata: Mapping[str, object], get: Callable[[str, float | None], float]) -> int:
    tokens = metadata.get("tokenizer.ggml.tokens")
    num_tokens = len(tokens) if isinstance(tokens, list) else 0
    vocab_size = int(get("vocab_size", num_tokens or None))
    if num_tokens > vocab_size:
        raise CheckpointError(
            f"The file's tokenizer has {num_tokens} tokens and its model {vocab_size}. "
            "Fetch it again."
        )
    return vocab_size


def llama_target(tensors: GgufTensors, dims: LlamaDims, arch: str = "llama") -> LlamaTarget:
    """The whole trunk. arch: one of `PAIRWISE`.

    Raises CheckpointError for a tensor that is missing, misshapen or left over, and
    UnsupportedTensorError for one of a type that cannot be read.
    """
    width, vocab_size = dims.hidden_size, dims.vocab_size
    embedding = tensors.matrix("token_embd.weight", vocab_size, width)
    tied = "output.weight" not in tensors.by_name
    blocks = [_block(tensors, dims, f"blk.{i}", PAIRWISE[arch]) for i in range(dims.num_layers)]
    target = LlamaTarget(
        dims=replace(dims, rope_factors=_rope_factors(tensors, dims)),
        embedding=embedding,
        blocks=tuple(blocks),
        final_norm=tensors.vector("output_norm.weight", width),
        lm_head=embedding if tied else tensors.matrix("output.weight", vocab_size, width),
    )
    refuse_left_over(tensors)
    return target


def refuse_left_over(tensors: GgufTensors) -> None:
    """UnsupportedTensorError, by name, for a tensor that nothing has asked for."""
    if tensors.unread:
        raise UnsupportedTensorError(
            f"The file holds {min(tensors.unread)}, which this architecture does not know here "
            f"({len(tensors.unread)} such tensors). Without them it would be another model."
        )


def _rope_factors(tensors: GgufTensors, dims: LlamaDims) -> tuple[float, ...]:
    """Llama 3.1 and its like bring the stretch of each wavelength along."""
    if "rope_freqs.weight" not in tensors.by_name:
        return dims.rope_factors
    factors: list[float] = tensors.vector("rope_freqs.weight", dims.head_dim // 2).tolist()  # type: ignore[assignment]
    if min(factors) <= 0:
        raise CheckpointError("rope_freqs.weight holds a factor that is not positive.")
    return tuple(factors)


def _block(tensors: GgufTensors, dims: LlamaDims, at: str, pairwise: bool) -> LlamaBlock:
    width, mlp = dims.hidden_size, dims.mlp_size
    q_rows = dims.num_heads * dims.head_dim
    gate_up = [Rows(f"{at}.ffn_gate.weight", mlp), Rows(f"{at}.ffn_up.weight", mlp)]
    qkv = _qkv_rows(dims, at, pairwise)
    return LlamaBlock(
        attention_norm=tensors.vector(f"{at}.attn_norm.weight", width),
        qkv=tensors.joined(qkv, width),
        output=tensors.matrix(f"{at}.attn_output.weight", width, q_rows),
        mlp_norm=tensors.vector(f"{at}.ffn_norm.weight", width),
        gate_up=tensors.joined(gate_up, width),
        down=tensors.matrix(f"{at}.ffn_down.weight", width, mlp),
        qkv_bias=_qkv_bias(tensors, qkv),
        qk_norm=_qk_norm(tensors, dims, at),
    )


def _qkv_rows(dims: LlamaDims, at: str, pairwise: bool) -> list[Rows]:
    q_rows, kv_rows = dims.num_heads * dims.head_dim, dims.num_kv_heads * dims.head_dim
    return [
        Rows(f"{at}.attn_q.weight", q_rows, dims.num_heads if pairwise else None),
        Rows(f"{at}.attn_k.weight", kv_rows, dims.num_kv_heads if pairwise else None),
        Rows(f"{at}.attn_v.weight", kv_rows),
    ]


def _qkv_bias(tensors: GgufTensors, parts: list[Rows]) -> mx.array | None:
    names = [part.name.replace("weight", "bias") for part in parts]
    if not any(name in tensors.by_name for name in names):
        return None
    found = [tensors.vector(name, part.num_rows) for name, part in zip(names, parts, strict=True)]
    in_order = [
        bias if isinstance(part.order, slice) else bias[mx.array(part.order)]
        for bias, part in zip(found, parts, strict=True)
    ]
    return mx.concatenate(in_order)


def _qk_norm(tensors: GgufTensors, dims: LlamaDims, at: str) -> mx.array | None:
    names = [f"{at}.attn_q_norm.weight", f"{at}.attn_k_norm.weight"]
    if not any(name in tensors.by_name for name in names):
        return None
    q, k = (tensors.vector(name, dims.head_dim)[None, None] for name in names)
    return mx.concatenate([mx.repeat(q, dims.num_heads, 0), mx.repeat(k, dims.num_kv_heads, 0)])
