"""What the state of a GGUF file's model takes, told from its metadata."""

from collections.abc import Mapping

import mlx.core as mx

from mtplx.errors import CheckpointError
from mtplx.loading.description import number_or_none
from mtplx.loading.gguf_layouts import Fields, Layout
from mtplx.models.cache_need import CacheNeed, model_need


def gguf_kv_dtype(*, packed: bool) -> mx.Dtype:
    """What models from GGUF keep keys and values in, whose activations are float32.

    packed: as on a GPU. There it is float16, as in llama.cpp: half the memory, and half of what a
    token reads behind a long text. Its range suffices, because what is kept is a product of a
    normed row and never the residual stream, which is what outgrows float16 in Gemma 3: of the
    270M one no value can exceed 1,755, whatever the text, for a norm bounds the row and the
    weights do the rest (keys are normed themselves), where the stream reaches 66,000. bfloat16
    would only round eight times as far, which Qwen 2's keys, with biases of 200, can spare least.
    On a CPU it is float32: MLX's products in half precision are slow there.
    """
    return mx.float16 if packed else mx.float32


def gguf_state(
    metadata: Mapping[str, object], head_layers: int = 0, kv_dtype: mx.Dtype = mx.float32
) -> CacheNeed | None:
    """Of all layers, each by its kind; None where the metadata does not say.

    head_layers: of attention, of a head in a file of its own. A head in the file itself counts.
    kv_dtype: what keys and values are kept in; recurrent states are float32.
    Of a model of mlx-lm's this is what its caches would hold, which are never computed.
    """
    from mtplx.loading.gguf_model import LAYOUTS

    made = LAYOUTS.get(str(metadata.get("general.architecture")))
    try:
        if made is None:
            state = _of_llama(metadata, kv_dtype)
        else:
            state = _of_layout(made(metadata), metadata, kv_dtype)
    except CheckpointError:  # of what cannot be loaded either
        return None
    return None if state is None else state + _of_attention(metadata, head_layers, kv_dtype)


def _of_layout(layout: Layout, metadata: Mapping[str, object], kv_dtype: mx.Dtype) -> CacheNeed:
    from mtplx.loading.gguf_weights import tied
    from mtplx.models.mlx_lm_model import dense_model

    modules = int(Fields(metadata).number("block_count")) - layout.num_layers
    own = model_need(dense_model(tied(layout.config, is_tied=True)), kv_dtype)
    return own + _of_attention(metadata, modules, kv_dtype)


def _of_llama(metadata: Mapping[str, object], kv_dtype: mx.Dtype) -> CacheNeed | None:
    layers = number_or_none(metadata.get(f"{Fields(metadata).arch}.block_count"))
    return None if layers is None else _of_attention(metadata, layers, kv_dtype)


def _of_attention(metadata: Mapping[str, object], num_layers: int, kv_dtype: mx.Dtype) -> CacheNeed:
    """Layers that keep keys and values of every token. Raises CheckpointError."""
    if not num_layers:
        return CacheNeed()
    fields = Fields(metadata)
    heads, width = fields.number("attention.head_count"), fields.number("embedding_length")
    kv_heads = fields.number("attention.head_count_kv", heads)
    size = int(fields.number("attention.key_length", width // heads))
    return CacheNeed(per_token=2 * num_layers * int(kv_heads) * size * kv_dtype.size)
