"""Passes through a model and its caches, and what the caches hold after them."""

from collections.abc import Iterable, Sequence
from typing import Any

import mlx.core as mx

from mtplx.cache import WindowCache, single_caches
from mtplx.models.undo import layer_caches
from mtplx.speculation import LayerCache, Snapshot
from tests.tiny import random_prompt, same
from tests.undo.tiny_models import VOCAB_SIZE

TEXT = random_prompt(64, vocab_size=VOCAB_SIZE)
NUM_PREFILLED = 6


def run(model: Any, caches: list[LayerCache], token_ids: Sequence[int]) -> mx.array:
    """Logits [T, V] of tokens that are passed at once, nothing of which is kept yet."""
    logits: mx.array = model(mx.array([list(token_ids)]), cache=caches)[0]
    return logits


def keep(caches: list[LayerCache], start: int, num_rows: int, num_kept: int) -> None:
    """Of a pass of `num_rows` tokens behind `start` keep the first ones."""
    for layer in caches:
        layer.check(start, num_rows)
    for layer in caches:
        layer.keep(num_kept)


def round_of(
    model: Any, caches: list[LayerCache], position: int, num_rows: int, num_kept: int
) -> None:
    """A block of the text whose tokens behind the first `num_kept` are wrong, and are undone."""
    wrong = [(token_id + 1) % VOCAB_SIZE for token_id in TEXT[position + num_kept :]]
    block = [*TEXT[position : position + num_kept], *wrong][:num_rows]
    run(model, caches, block)
    keep(caches, position, num_rows, num_kept)


def stepped(model: Any, length: int) -> list[LayerCache]:
    """Caches that read the first tokens of the text at once and the others one by one."""
    caches = layer_caches(model)
    first = min(length, NUM_PREFILLED)
    round_of(model, caches, 0, first, first)
    for position in range(first, length):
        round_of(model, caches, position, 1, 1)
    return caches


def prefilled(model: Any, length: int) -> list[LayerCache]:
    """Caches that read the first tokens of the text at once."""
    caches = layer_caches(model)
    round_of(model, caches, 0, length, length)
    return caches


def hold_the_same(one: list[LayerCache], other: list[LayerCache]) -> bool:
    """Whether all that a token behind would see is the same in every layer."""
    return all(
        a.numbers == b.numbers and all(same(x, y) for x, y in zip(a.arrays, b.arrays, strict=True))
        for a, b in zip(contents(one), contents(other), strict=True)
    )


def contents(caches: Iterable[LayerCache]) -> list[Snapshot]:
    """What the layers hold, a snapshot for each state."""
    # Rows that no token sees any more are held or not, whatever came in whichever pass.
    return [
        layer.snapshot(whole=not isinstance(layer, WindowCache)) for layer in single_caches(caches)
    ]
