"""Whether a checkpoint's output layer is its embedding: by its tensors, not by its flag."""

from typing import Any

import mlx.core as mx

from mtplx.models.family import Config, Tensors, text_config, text_name

FLAG = "tie_word_embeddings"


def tied_by_weights(config: Config, trunk: Tensors) -> tuple[dict[str, Any], Tensors]:
    """The configuration with the flag that the trunk's tensors call for, and the tensors it needs.

    Without an output layer of its own a model has its embedding's; one that is there is used, also
    against the flag, unless the flag says tied and the two hold the same numbers.
    """
    named = {text_name(name): array for name, array in trunk.items()}
    table = next((named[n] for n in named if n.endswith("embed_tokens.weight")), None)
    output = named.get("lm_head.weight")
    text = text_config(config)
    if table is None or (FLAG not in {**config, **text} and output is not None):
        return dict(config), dict(trunk)
    says_tied = bool(text.get(FLAG, config.get(FLAG, False)))
    tied = output is None or (says_tied and _equal(output, table))
    kept = {n: a for n, a in trunk.items() if not (tied and text_name(n).startswith("lm_head."))}
    flagged = {**config, FLAG: tied}
    return (flagged if text is config else flagged | {"text_config": {**text, FLAG: tied}}), kept


def _equal(one: mx.array, other: mx.array) -> bool:
    return (
        one.shape == other.shape and one.dtype == other.dtype and bool(mx.array_equal(one, other))
    )
