"""Any attention-only model of mlx-lm as a target, its final norm lifted out.

mlx-lm's models apply their final norm inside `model.model`. Replacing that module by one that
gives back its input makes the same code return the hidden state before the norm, and the norm is
then applied here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mtplx.cache import AttentionCache
from mtplx.errors import CheckpointError, UnsupportedTensorError
from mtplx.speculation import LayerCache


@dataclass(frozen=True, slots=True)
class MlxLmTarget:
    """An mlx-lm model as the decode loop sees it (speculation.Target)."""

    model: Any  # mlx_lm's Model
    trunk: Any  # its inner model, without the final norm
    final_norm: Any
    num_layers: int
    vocab_size: int
    context_length: int

    def make_cache(self) -> list[LayerCache]:
        return [AttentionCache(f"layers.{i}") for i in range(self.num_layers)]

    def forward(self, token_ids: mx.array, cache: list[LayerCache]) -> mx.array:
        hidden: mx.array = self.trunk(token_ids[None], cache=cache)
        return hidden[0]

    def normalise(self, hidden: mx.array) -> mx.array:
        normed: mx.array = self.final_norm(hidden)
        return normed

    def logits(self, hidden: mx.array) -> mx.array:
        tied = not hasattr(self.model, "lm_head")
        project = self.trunk.embed_tokens.as_linear if tied else self.model.lm_head
        logits: mx.array = project(hidden)
        return logits


def mlx_lm_target(path: Path) -> MlxLmTarget:
    """Load a folder through mlx-lm.

    Raises CheckpointError for a folder that mlx-lm cannot read, UnsupportedTensorError for
    an architecture whose state cannot be undone yet, or whose logits are not made as here.
    """
    from mlx_lm.models.cache import KVCache, make_prompt_cache
    from mlx_lm.utils import load_model

    try:
        model, config = load_model(path)
    except (ValueError, OSError, KeyError, RuntimeError, TypeError, AttributeError) as error:
        raise CheckpointError(f"mlx-lm cannot load {path}: {error}") from error
    name = f"{path} ({config.get('model_type')})"
    caches = make_prompt_cache(model)
    kinds = {type(layer).__name__ for layer in caches if type(layer) is not KVCache}
    if kinds:
        raise UnsupportedTensorError(
            f"{name} keeps state in {', '.join(sorted(kinds))}, "
            "which cannot be undone exactly yet, so this model is not decoded."
        )
    trunk = getattr(model, "model", None)
    norm = getattr(trunk, "norm", None)
    if trunk is None or norm is None:
        raise UnsupportedTensorError(f"{name} has no final norm where one is expected.")
    sample = mx.array([1, 2, 3])
    expected = model(sample[None])[0]
    trunk.norm = nn.Identity()
    target = MlxLmTarget(
        model=model,
        trunk=trunk,
        final_norm=norm,
        num_layers=len(caches),
        vocab_size=expected.shape[-1],
        context_length=_context_length(config),
    )
    _check_logits(target, sample, expected, name)
    return target


def _context_length(config: Mapping[str, Any]) -> int:
    for part in (config, config.get("text_config", {})):
        if isinstance(found := part.get("max_position_embeddings"), int):
            return found
    return 4096


def _check_logits(target: MlxLmTarget, sample: mx.array, expected: mx.array, name: str) -> None:
    """Some architectures scale or cap their logits, or look for their norm elsewhere."""
    hidden = target.forward(sample, target.make_cache())
    logits = target.logits(target.normalise(hidden))
    if not mx.allclose(logits, expected, rtol=1e-3, atol=1e-3, equal_nan=True).item():
        raise UnsupportedTensorError(
            f"{name} does more behind its layers than a norm and a projection, "
            "which is not known here, so this model is not decoded."
        )
