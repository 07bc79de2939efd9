"""Any model of mlx-lm as a target, its final norm lifted out.

mlx-lm's models apply their final norm inside the inner model. Replacing that module by one that
gives back its input makes the same code return the hidden state before the norm, and the norm is
then applied here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mtplx.errors import UnsupportedTensorError
from mtplx.models.family import Config
from mtplx.models.matrix import Matrix
from mtplx.models.module_matrix import matrix_of
from mtplx.models.undo import layer_caches
from mtplx.speculation import LayerCache

# What mlx-lm's models call their parts.
WRAPPERS = ("language_model",)
TRUNKS = ("model", "backbone")
NORMS = ("norm", "norm_f", "embedding_norm")
EMBEDDINGS = ("embed_tokens", "embeddings", "word_embeddings")


@dataclass(frozen=True, slots=True)
class MlxLmTarget:
    """An mlx-lm model as the decode loop sees it (speculation.Target).

    kv_dtype: what keys and values are kept in; None is what they are computed in.
    """

    model: Any  # mlx_lm's Model
    trunk: Any  # its inner model, without the final norm
    final_norm: Any
    embedding: Matrix  # [V, D]
    lm_head: Matrix  # [V, D]; the embedding itself where they are tied
    vocab_size: int
    context_length: int
    kv_dtype: mx.Dtype | None = None

    def make_cache(self) -> list[LayerCache]:
        return layer_caches(self.model, kv_dtype=self.kv_dtype)

    def forward(self, token_ids: mx.array, cache: list[LayerCache]) -> mx.array:
        hidden: mx.array = self.trunk(token_ids[None], cache=cache)
        return hidden[0]

    def normalise(self, hidden: mx.array) -> mx.array:
        normed: mx.array = self.final_norm(hidden)
        return normed

    def logits(self, hidden: mx.array) -> mx.array:
        return self.lm_head(hidden)


def mlx_lm_target(model: Any, config: Config, name: str) -> MlxLmTarget:
    """A target of a model that has its weights. name: how errors call it.

    Raises UnsupportedTensorError for an architecture whose state cannot be undone, or whose logits
    are not made of a final norm and one product.
    """
    try:
        layer_caches(model)
    except UnsupportedTensorError as error:
        raise UnsupportedTensorError(f"{name}: {error}") from error
    wrapper = name_of(model, WRAPPERS)
    outer = model if wrapper is None else model[wrapper]
    trunk = outer[name_of(outer, TRUNKS)] if name_of(outer, TRUNKS) else {}
    norm, table = name_of(trunk, NORMS), name_of(trunk, EMBEDDINGS)
    if norm is None or table is None:
        raise UnsupportedTensorError(
            f"{name} has no embedding or final norm where one is expected."
        )
    sample = mx.array([1, 2, 3])
    expected = model(sample[None])[0]
    final_norm, trunk[norm] = trunk[norm], nn.Identity()
    embedding = matrix_of(trunk[table])
    target = MlxLmTarget(
        model=model,
        trunk=trunk,
        final_norm=final_norm,
        embedding=embedding,
        lm_head=matrix_of(outer.lm_head) if "lm_head" in outer else embedding,
        vocab_size=expected.shape[-1],
        context_length=_context_length(config),
    )
    _check_logits(target, sample, expected, name)
    return target


def name_of(module: Any, names: tuple[str, ...]) -> str | None:
    """The first of these names that the module has a part of."""
    return next((name for name in names if name in module), None)


def _context_length(config: Config) -> int:
    for part in _parts(config):
        if isinstance(found := part.get("max_position_embeddings"), int):
            return found
    return 4096


def _parts(config: Config) -> Iterator[Config]:
    yield config
    inner = config.get("text_config")
    if isinstance(inner, dict):
        yield inner


def _check_logits(target: MlxLmTarget, sample: mx.array, expected: mx.array, name: str) -> None:
    """Some architectures scale or cap their logits, or look for their norm elsewhere."""
    hidden = target.forward(sample, target.make_cache())
    logits = target.logits(target.normalise(hidden))
    if not mx.allclose(logits, expected, rtol=1e-3, atol=1e-3, equal_nan=True).item():
        raise UnsupportedTensorError(
            f"{name} does more behind its layers than a norm and a projection, "
            "which is not known here, so this model is not decoded."
        )
