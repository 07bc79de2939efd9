"""What the state of a GGUF file's model takes, told from its metadata."""

from collections.abc import Mapping

from mtplx.errors import CheckpointError
from mtplx.loading.description import number_or_none
from mtplx.loading.gguf_layouts import Fields, Layout
from mtplx.models.cache_need import CacheNeed, model_need

_NUMBER_BYTES = 4  # activations of models from GGUF are float32, packed weights or not


def gguf_state(metadata: Mapping[str, object], head_layers: int = 0) -> CacheNeed | None:
    """Of all layers, each by its kind; None where the metadata does not say.

    head_layers: of attention, of a head in a file of its own. A head in the file itself counts.
    Of a model of mlx-lm's this is what its caches would hold, which are never computed.
    """
    from mtplx.loading.gguf_model import LAYOUTS

    made = LAYOUTS.get(str(metadata.get("general.architecture")))
    try:
        state = _of_llama(metadata) if made is None else _of_layout(made(metadata), metadata)
    except CheckpointError:  # of what cannot be loaded either
        return None
    return None if state is None else state + _of_attention(metadata, head_layers)


def _of_layout(layout: Layout, metadata: Mapping[str, object]) -> CacheNeed:
    from mtplx.loading.gguf_weights import tied
    from mtplx.models.mlx_lm_model import dense_model

    modules = int(Fields(metadata).number("block_count")) - layout.num_layers
    own = model_need(dense_model(tied(layout.config, is_tied=True)))
    return own + _of_attention(metadata, modules)


def _of_llama(metadata: Mapping[str, object]) -> CacheNeed | None:
    layers = number_or_none(metadata.get(f"{Fields(metadata).arch}.block_count"))
    return None if layers is None else _of_attention(metadata, layers)


def _of_attention(metadata: Mapping[str, object], num_layers: int) -> CacheNeed:
    """Layers that keep keys and values of every token. Raises CheckpointError."""
    if not num_layers:
        return CacheNeed()
    fields = Fields(metadata)
    heads, width = fields.number("attention.head_count"), fields.number("embedding_length")
    kv_heads = fields.number("attention.head_count_kv", heads)
    size = int(fields.number("attention.key_length", width // heads))
    return CacheNeed(per_token=2 * num_layers * int(kv_heads) * size * _NUMBER_BYTES)
