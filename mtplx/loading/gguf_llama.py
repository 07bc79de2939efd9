"""A llama-type GGUF to a `LlamaTarget`."""

from collections.abc import Callable, Mapping

from mtplx.errors import CheckpointError, UnsupportedTensorError
from mtplx.loading.gguf_tensors import GgufTensors, Rows
from mtplx.models.llama import LlamaBlock, LlamaDims, LlamaTarget

UNSUPPORTED = (  # llama.cpp's meaning of "llama" has room for these
    "expert_count",
    "attention.sliding_window",
    "attention.scale",
    "attention.clamp_kqv",
    "embedding_scale",
    "residual_scale",
    "logit_scale",
)


def llama_dims(metadata: Mapping[str, object]) -> LlamaDims:
    """Sizes from GGUF metadata.

    Raises CheckpointError for a key that is missing or cannot be meant, and
    UnsupportedTensorError, by name, for what llama.cpp supports and this does not.
    """
    arch = metadata.get("general.architecture")
    if arch != "llama":
        raise UnsupportedTensorError(
            f"Architecture {arch!r} is not readable from GGUF yet; 'llama' is."
        )
    _refuse_unsupported(metadata)

    def get(key: str, default: float | None = None) -> float:
        value = metadata.get(f"llama.{key}", default)
        if value is None:
            raise CheckpointError(f"The file's metadata lacks llama.{key}. Fetch it again.")
        if not isinstance(value, int | float) or not 0 < value < 2**31:
            raise CheckpointError(
                f"The file's metadata has llama.{key} = {value!r}; one positive number is needed."
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
    )


def _refuse_unsupported(metadata: Mapping[str, object]) -> None:
    for key in UNSUPPORTED:
        if metadata.get(f"llama.{key}"):
            raise UnsupportedTensorError(f"llama.{key} is set, which is not supported yet.")
    if metadata.get("llama.rope.scaling.factor", 1.0) not in (0, 1):
        raise UnsupportedTensorError(
            "llama.rope.scaling.factor is set, which is not supported yet."
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


def llama_target(tensors: GgufTensors, dims: LlamaDims) -> LlamaTarget:
    """The whole trunk.

    Raises CheckpointError for a tensor that is missing, misshapen or left over, and
    UnsupportedTensorError for one of a type that cannot be read.
    """
    width, vocab_size = dims.hidden_size, dims.vocab_size
    embedding = tensors.matrix("token_embd.weight", vocab_size, width)
    tied = "output.weight" not in tensors.by_name
    target = LlamaTarget(
        dims=dims,
        embedding=embedding,
        blocks=tuple(_block(tensors, dims, f"blk.{i}") for i in range(dims.num_layers)),
        final_norm=tensors.vector("output_norm.weight", width),
        lm_head=embedding if tied else tensors.matrix("output.weight", vocab_size, width),
    )
    if tensors.unread:
        raise UnsupportedTensorError(
            f"The file holds {min(tensors.unread)}, which this architecture does not know here "
            f"({len(tensors.unread)} such tensors). Without them it would be another model."
        )
    return target


def _block(tensors: GgufTensors, dims: LlamaDims, at: str) -> LlamaBlock:
    width, mlp = dims.hidden_size, dims.mlp_size
    q_rows, kv_rows = dims.num_heads * dims.head_dim, dims.num_kv_heads * dims.head_dim
    qkv = [
        Rows(f"{at}.attn_q.weight", q_rows, dims.num_heads),
        Rows(f"{at}.attn_k.weight", kv_rows, dims.num_kv_heads),
        Rows(f"{at}.attn_v.weight", kv_rows),
    ]
    gate_up = [Rows(f"{at}.ffn_gate.weight", mlp), Rows(f"{at}.ffn_up.weight", mlp)]
    return LlamaBlock(
        attention_norm=tensors.vector(f"{at}.attn_norm.weight", width),
        qkv=tensors.joined(qkv, width),
        output=tensors.matrix(f"{at}.attn_output.weight", width, q_rows),
        mlp_norm=tensors.vector(f"{at}.ffn_norm.weight", width),
        gate_up=tensors.joined(gate_up, width),
        down=tensors.matrix(f"{at}.ffn_down.weight", width, mlp),
    )
