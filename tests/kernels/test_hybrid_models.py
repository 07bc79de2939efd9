"""Models with gated delta layers give mlx-lm's logits through our kernel, which also undoes."""

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import pytest

from mtplx.cache import RecurrentCache
from mtplx.kernels.gated_delta import KEY_MULTIPLE
from mtplx.kernels.source import Maker
from mtplx.models.gated_delta import MAX_ROWS
from mtplx.models.undo import layer_caches
from tests.kernels.hosts import Watch
from tests.kernels.platforms import needs_linux
from tests.tiny import close
from tests.undo.passes import TEXT, keep, run
from tests.undo.tiny_models import build

BOUND = 1e-4  # of the largest number: the same sums in another order
# A decay for a head, and one for each column of its keys.
KINDS = ["qwen3_5", "kimi_linear"]


@pytest.fixture(autouse=True, scope="module")
def _without_compiler() -> Iterator[None]:
    """On a CPU it calls g++ for each new expression, seconds for the same bits."""
    mx.disable_compile()
    yield
    mx.enable_compile()


def reference(kind: str, num_tokens: int) -> tuple[mx.array, list[mx.array]]:
    """Logits, and the states of recurrent layers, of mlx-lm's model with its own caches."""
    from mlx_lm.models.cache import ArraysCache, make_prompt_cache

    model = build(kind)
    caches = make_prompt_cache(model)
    logits = model(mx.array([TEXT[:num_tokens]]), cache=caches)[0]
    return logits, [a for cache in caches if isinstance(cache, ArraysCache) for a in cache.cache]


def recurrent(caches: list[Any]) -> list[RecurrentCache]:
    return [cache for cache in caches if isinstance(cache, RecurrentCache)]


def states(caches: list[Any]) -> list[mx.array]:
    return [array for cache in recurrent(caches) for array in cache.arrays if array is not None]


def are_close(one: list[mx.array], other: list[mx.array]) -> bool:
    return all(close(a, b, bound=BOUND) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_gives_the_logits_of_mlx_lm(kind: str, maker: Maker) -> None:
    """And leaves the same states."""
    model = build(kind)
    caches = layer_caches(model, maker)
    logits, expected = reference(kind, 6)
    assert close(run(model, caches, TEXT[:6]), logits, bound=BOUND)
    assert are_close(states(caches), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_kept", [0, 1, 3])
def test_an_undone_pass_leaves_what_the_kept_tokens_left(
    kind: str, num_kept: int, maker: Maker
) -> None:
    """The states of mlx-lm's model that never saw the others, and its logits of what follows."""
    model = build(kind)
    caches = layer_caches(model, maker)
    run(model, caches, TEXT[:2])
    keep(caches, 0, 2, 2)
    run(model, caches, [*TEXT[2 : 2 + num_kept], *[0] * (4 - num_kept)])
    keep(caches, 2, 4, num_kept)
    seen = 2 + num_kept
    assert are_close(states(caches), reference(kind, seen)[1])
    following = run(model, caches, TEXT[seen : seen + 2])
    assert close(following, reference(kind, seen + 2)[0][seen:], bound=BOUND)


@needs_linux
def test_undoing_folds_and_computes_nothing_else() -> None:
    """One kernel for each recurrent layer, which reads no weights."""
    watch = Watch()
    model = build("qwen3_5")
    caches = layer_caches(model, watch)
    run(model, caches, TEXT[:3])
    num_layers = len(recurrent(caches))
    assert ["delta_step<" in result.text for result in watch.results] == [True] * num_layers
    watch.results.clear()
    keep(caches, 0, 3, 1)
    assert len(watch.results) == num_layers
    assert all("before, after, shape, uint(count)" in result.text for result in watch.results)


def test_a_pass_too_long_for_a_tape_is_undone(maker: Maker) -> None:
    """By running its recurrence again."""
    model = build("qwen3_5")
    caches = layer_caches(model, maker)
    run(model, caches, TEXT[: MAX_ROWS + 2])
    keep(caches, 0, MAX_ROWS + 2, 5)
    assert are_close(states(caches), reference("qwen3_5", 5)[1])


@needs_linux
def test_keys_that_fit_no_kernel_are_left_to_mlx_lm() -> None:
    watch = Watch()
    model = build("qwen3_next", linear_key_head_dim=KEY_MULTIPLE + 4)
    run(model, layer_caches(model, watch), TEXT[:2])
    assert watch.results == []


@needs_linux
def test_a_wrong_kernel_gives_wrong_logits() -> None:
    """Heads in the other order: the comparison above would fail."""
    model = build("qwen3_5")
    caches = layer_caches(model, Watch(replace={"return TILED ?": "return !TILED ?"}))
    assert not close(run(model, caches, TEXT[:6]), reference("qwen3_5", 6)[0], bound=1e-3)
