"""Rounds of models of mlx-lm's of every kind: what was not kept leaves no trace in any layer.

"The same" is bit for bit with MLX's own BLAS (tests/test_bit_for_bit.py).
"""

import mlx.core as mx
import pytest

from mtplx.blas import serving
from mtplx.errors import RollbackError
from mtplx.models.undo import layer_caches
from mtplx.speculation import LayerCache
from tests.tiny import close, same
from tests.undo.passes import (
    NUM_PREFILLED,
    TEXT,
    contents,
    hold_the_same,
    keep,
    prefilled,
    round_of,
    run,
    stepped,
)
from tests.undo.tiny_models import OTHERS, RECURRENT, WINDOWED, build, tiny_model

BLOCK = 5
# One of each kind of state; the others are slow only by their number.
USUAL = {"qwen3_5", "mamba", "nemotron_h", "lfm2", "baichuan_m1", "gemma3_text", "llama4"}
# For several tokens these compute the recurrence in another way than for one; short blocks of
# theirs are stepped, prompts are not.
MAMBA_2 = {"falcon_h1", "granitemoehybrid", "mamba2", "nemotron_h", "plamo2"}
REREADING = {"recurrent_gemma"}  # whose mixer has matrices outside of its projections
REFUSED = {"plamo3"}
NAMES = [
    pytest.param(name, marks=() if name in USUAL else pytest.mark.slow)
    for name in sorted((RECURRENT | WINDOWED | OTHERS).keys() - REFUSED)
]


@pytest.mark.usefixtures("mlx_lms_rule")
@pytest.mark.parametrize("name", NAMES)
def test_the_first_pass_is_mlx_lms_own(name: str) -> None:
    """Our caches change no bit of the logits."""
    from mlx_lm.models.cache import make_prompt_cache

    model = tiny_model(name)
    ours = run(model, layer_caches(model), TEXT[:20])
    theirs = model(mx.array([TEXT[:20]]), cache=make_prompt_cache(model))[0]
    assert mx.array_equal(ours, theirs)


@pytest.mark.parametrize("name", NAMES)
def test_rejected_rows_leave_no_trace(name: str) -> None:
    """Blocks of which any number is kept, single tokens between, across a window's edge: every
    array is that of the kept tokens, and so are the next logits."""
    model = tiny_model(name)
    caches, position = prefilled(model, NUM_PREFILLED), NUM_PREFILLED
    for num_kept in range(BLOCK + 1):
        round_of(model, caches, position, BLOCK, num_kept)
        position += num_kept
        assert hold_the_same(caches, stepped(model, position))
        round_of(model, caches, position, 1, 1)
        position += 1
    fresh = stepped(model, position)
    assert same(run(model, caches, TEXT[:3]), run(model, fresh, TEXT[:3]))
    assert sum(layer.num_replays for layer in caches) == (BLOCK - 1) * num_rereading(name, caches)


def num_rereading(name: str, caches: list[LayerCache]) -> int:
    """Layers that read weights again for each block of which a part is kept."""
    if name not in REREADING:
        return 0
    return sum(not layer.keeps_every_length and not hasattr(layer, "window") for layer in caches)


@pytest.mark.parametrize("name", [p for p in NAMES if p.values[0] not in MAMBA_2])
def test_rounds_leave_what_a_prompt_leaves(name: str) -> None:
    """After rounds that kept parts, the arrays are those of reading the same text at once."""
    model = tiny_model(name)
    caches, position = prefilled(model, NUM_PREFILLED), NUM_PREFILLED
    for num_rows, num_kept in ((3, 1), (BLOCK, 4), (1, 1), (2, 0), (4, 2), (BLOCK, BLOCK), (3, 2)):
        round_of(model, caches, position, num_rows, num_kept)
        position += num_kept
    assert hold_the_same(caches, prefilled(model, position))


@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_rows_leave_no_trace(bits: int) -> None:
    """Of attention kept in few bits, and the first pass is mlx-lm's own to the bit."""
    from mlx_lm.models.cache import QuantizedKVCache

    model = build("llama", head_dim=32, layer_types=["full_attention"] * 4)
    model.make_cache = lambda: [QuantizedKVCache(group_size=32, bits=bits) for _ in range(4)]
    theirs = model(mx.array([TEXT[:20]]), cache=model.make_cache())[0]
    assert mx.array_equal(run(model, layer_caches(model), TEXT[:20]), theirs)
    caches, position = prefilled(model, NUM_PREFILLED), NUM_PREFILLED
    for num_kept in range(BLOCK + 1):
        round_of(model, caches, position, BLOCK, num_kept)
        position += num_kept
    assert contents(caches)[0].arrays
    pairs = zip(contents(caches), contents(stepped(model, position)), strict=True)
    for found, expected in pairs:
        assert [a.shape for a in found.arrays] == [b.shape for b in expected.arrays]
    logits = run(model, caches, TEXT[:3]), run(model, stepped(model, position), TEXT[:3])
    # Where a BLAS rounds blocks otherwise, a value may fall on the other side of a step.
    assert same(*logits) if serving().name == "mlx" else close(*logits, bound=2 ** (1 - bits))


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_model_whose_blocks_see_more_than_single_tokens_is_refused(name: str) -> None:
    """Its mask is wider than what its cache keeps; the layer is named, before the first token."""
    model = tiny_model(name)
    with pytest.raises(RollbackError, match=r"layers\.\d.*window of 9 .*keeps 8"):
        run(model, layer_caches(model), TEXT[:3])


@pytest.mark.parametrize("name", ["qwen3_5", "gemma3_text", "baichuan_m1"])
def test_a_pass_that_a_layer_missed_is_noticed_before_any_layer_moves(name: str) -> None:
    """Each layer in turn stands aside; the error names it."""
    model = tiny_model(name)
    for index in range(len(layer_caches(model))):
        caches = prefilled(model, NUM_PREFILLED)
        aside = layer_caches(model)
        run(model, [*caches[:index], aside[index], *caches[index + 1 :]], TEXT[:2])
        with pytest.raises(RollbackError, match=rf"layers\.{index}.*2 tokens after 6"):
            keep(caches, NUM_PREFILLED, 2, 1)


@pytest.mark.parametrize("name", ["qwen3_5", "gemma3_text", "baichuan_m1"])
def test_a_layer_that_ran_twice_is_noticed(name: str) -> None:
    """As models with looped layers would, were there one cache for all loops."""
    model = tiny_model(name)
    caches = prefilled(model, NUM_PREFILLED)
    run(model, caches, TEXT[:2])
    run(model, caches, TEXT[:2])
    with pytest.raises(RollbackError, match=r"layers\.0.*2 tokens after 6.* 10, 2 of them"):
        keep(caches, NUM_PREFILLED, 2, 1)
