from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from mtplx.blas import serving
from mtplx.models.llama import LlamaDims, LlamaTarget
from tests.foreign import hf_tensors, mlx_lm_llama, transformers_logits
from tests.tiny import DIMS, close, random_prompt, same, tiny_target

SHAPES = [
    DIMS,
    replace(DIMS, num_kv_heads=4),
    replace(DIMS, num_kv_heads=1, num_layers=3),
    replace(DIMS, head_dim=16, rope_base=500_000.0, norm_eps=1e-6),
]


def logits_of(target: LlamaTarget, token_ids: list[int], *passes: int) -> mx.array:
    """[T, V] of all tokens, taken in passes of these lengths."""
    cache, rows = target.make_cache(), list[mx.array]()
    for count in passes:
        done = cache[0].offset
        hidden = target.forward(mx.array(token_ids[done : done + count]), cache)
        rows.append(target.logits(target.normalise(hidden)))
    return mx.concatenate(rows)


@pytest.mark.slow
@pytest.mark.parametrize("dims", SHAPES)
def test_logits_are_those_of_transformers(dims: LlamaDims) -> None:
    """Random weights, grouped heads or not: torch's float32 model agrees to rounding."""
    target, prompt = tiny_target(dims=dims), random_prompt(40)
    expected = transformers_logits(dims, hf_tensors(target), prompt)
    assert np.abs(np.array(logits_of(target, prompt, 40)) - expected).max() < 5e-5


@pytest.mark.parametrize("dims", SHAPES)
def test_logits_are_those_of_mlx_lm(dims: LlamaDims) -> None:
    """Products joined here and apart there give the same numbers, to rounding."""
    target, prompt = tiny_target(dims=dims), random_prompt(40)
    expected = mlx_lm_llama(target)(mx.array(prompt)[None])[0]
    assert close(logits_of(target, prompt, 40), expected)


@pytest.mark.parametrize("passes", [(1,) * 40, (37, 1, 2), (5, 6, 7, 8, 14), (39, 1)])
def test_passes_of_any_length_give_the_logits_of_one(passes: tuple[int, ...]) -> None:
    """Token by token, in blocks or at once: bit for bit with MLX's own BLAS."""
    target, prompt = tiny_target(), random_prompt(40)
    assert same(logits_of(target, prompt, *passes), logits_of(target, prompt, 40))


def test_a_long_context_is_no_other() -> None:
    """Beyond the growth of the caches and 1,000 positions, a block equals single steps."""
    target, prompt = tiny_target(), random_prompt(1030)
    steps = logits_of(target, prompt, 1020, *(1,) * 10)[1020:]
    assert same(steps, logits_of(target, prompt, 1020, 10)[1020:])


def test_sequences_in_step_do_not_see_each_other() -> None:
    """A batch gives each sequence what it gets alone."""
    target, prompts = tiny_target(), [random_prompt(9, seed) for seed in range(3)]
    together = target.forward_batch(mx.array(prompts), target.make_cache())
    for hidden, prompt in zip(together, prompts, strict=True):
        assert same(hidden, target.forward(mx.array(prompt), target.make_cache()))


def test_a_tied_lm_head_counts_once() -> None:
    """The arrays of a model are each listed once, so that their bytes are the memory it takes."""
    target = tiny_target()
    tied = replace(target, lm_head=target.embedding)
    assert len(target.arrays()) == 2 + 1 + 6 * DIMS.num_layers
    assert len(tied.arrays()) == len(target.arrays()) - 1


def test_the_exact_case_is_exact() -> None:
    """With MLX's own BLAS the comparisons of this suite allow no difference at all."""
    one = mx.array([1.0, 2.0])
    assert same(one, one)
    assert same(one, one * (1 + 2**-22)) == (serving().name != "mlx")
    assert not same(one, one + 1e-3)
    assert not same(one, one * mx.nan)
