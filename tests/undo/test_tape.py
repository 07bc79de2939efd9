"""Undoing a pass of a recurrent layer reads no weights, and gives what replaying it gives."""

from collections import Counter
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import mlx.nn as nn
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtplx.cache import RecurrentCache, single_caches
from mtplx.errors import RollbackError, UnsupportedTensorError
from mtplx.models.tape import Playback, RecordedCall
from mtplx.models.undo import layer_caches
from mtplx.speculation import LayerCache
from mtplx.stats import DecodeStats
from tests.tiny import finish, start
from tests.undo.passes import NUM_PREFILLED, TEXT, hold_the_same, prefilled, round_of, run, stepped
from tests.undo.targets import state_of
from tests.undo.tiny_models import build, tiny_model

TAPED = ["qwen3_5", "qwen3_next", "kimi_linear", "nemotron_h", "mamba", "lfm2", "baichuan_m1"]
BLOCK = 4


def recurrent(caches: list[LayerCache]) -> list[RecurrentCache]:
    return [layer for layer in single_caches(caches) if isinstance(layer, RecurrentCache)]


def calls_of(cache: RecurrentCache) -> list[RecordedCall]:
    return [call for call in cache._calls if isinstance(call, RecordedCall)]


def matrices(model: Any) -> list[Any]:
    """The modules whose weights are matrices, convolutions included."""
    modules = [module for _, module in model.named_modules()]
    return [m for m in modules if isinstance(m, nn.Linear | nn.Conv1d | nn.Embedding)]


@pytest.mark.parametrize("num_kept", range(1, BLOCK))
@pytest.mark.parametrize("name", TAPED)
def test_undoing_reads_no_weights(name: str, num_kept: int) -> None:
    """With every matrix made NaN between a pass and what is kept of it, the state is the same."""
    model = build(name)
    caches = prefilled(model, NUM_PREFILLED)
    wrong = [(token_id + 1) % 64 for token_id in TEXT]
    block = [*TEXT[NUM_PREFILLED : NUM_PREFILLED + num_kept], *wrong][:BLOCK]
    mx.eval(run(model, caches, block), [layer.state for layer in caches])
    weights = {id(module): module.weight for module in matrices(model)}
    for module in matrices(model):
        module.weight = module.weight * mx.nan
    for layer in caches:
        layer.check(NUM_PREFILLED, BLOCK)
        layer.keep(num_kept)
    mx.eval([layer.state for layer in caches])
    for module in matrices(model):
        module.weight = weights[id(module)]
    assert hold_the_same(caches, stepped(model, NUM_PREFILLED + num_kept))
    assert sum(layer.num_replays for layer in caches) == 0


def counted(model: Any) -> Counter[str]:
    """Counts the products with a weight matrix by module from now on, before it is recorded."""
    counts = Counter[str]()

    def counting(name: str, base: Any) -> Any:
        def call(self: Any, x: mx.array) -> mx.array:
            counts[name] += 1
            output: mx.array = base.__call__(self, x)
            return output

        # The name and place of the class it counts for, by which projections are known.
        return type(base.__name__, (base,), {"__call__": call, "__module__": base.__module__})

    for name, module in model.named_modules():
        if type(module) in (nn.Linear, nn.Conv1d):
            module.__class__ = counting(name, type(module))
    return counts


@pytest.mark.usefixtures("mlx_lms_rule")
@pytest.mark.parametrize("name", TAPED)
def test_without_a_tape_undoing_costs_one_more_small_pass_of_the_mixers(name: str) -> None:
    """Then, and only then, each projection of a mixer is used once more, and the state is the
    same; it is counted."""
    model = build(name)
    counts = counted(model)
    taped, bare = prefilled(model, NUM_PREFILLED), prefilled(model, NUM_PREFILLED)
    for caches in (taped, bare):
        run(model, caches, TEXT[NUM_PREFILLED : NUM_PREFILLED + BLOCK])
    in_pass = Counter(counts)
    for layer in taped:
        layer.keep(2)
    assert counts == in_pass
    for cache in recurrent(bare):
        for call in calls_of(cache):
            call.tape.outputs.clear()
    for layer in bare:
        layer.keep(2)
    more = counts - in_pass
    assert more
    assert all(count <= max(2, in_pass[key] // 4) for key, count in more.items())
    assert hold_the_same(taped, bare)
    assert sum(layer.num_replays for layer in bare) == len(recurrent(bare))


def test_keeping_all_or_nothing_plays_nothing_again() -> None:
    """Nor does a pass of one row."""
    model = build("qwen3_5")
    caches = prefilled(model, NUM_PREFILLED)
    for num_kept in (0, BLOCK):
        run(model, caches, TEXT[:BLOCK])
        held = recurrent(caches)[0].arrays
        for layer in caches:
            layer.keep(num_kept)
        if num_kept == BLOCK:
            assert all(a is b for a, b in zip(recurrent(caches)[0].arrays, held, strict=True))


def test_no_tape_outlives_its_pass() -> None:
    """What was noted is let go when it has been decided."""
    caches = prefilled(build("qwen3_5"), NUM_PREFILLED)
    assert all(calls_of(cache) == [] for cache in recurrent(caches))


def test_parameters_keep_their_names() -> None:
    """A model that records has the parameters that it had, and quantises as it did."""
    from mlx.utils import tree_flatten

    model = build("qwen3_5")
    before = set(tree_flatten(model.parameters(), destination={}))
    layer_caches(model)
    layer_caches(model)
    assert set(tree_flatten(model.parameters(), destination={})) == before
    nn.quantize(model, 32, 8, class_predicate=lambda _, module: _can_be_quantised(module))
    run(model, layer_caches(model), TEXT[:3])


def _can_be_quantised(module: Any) -> bool:
    return isinstance(module, nn.Linear) and module.weight.shape[-1] % 32 == 0


@pytest.mark.usefixtures("mlx_lms_rule")
def test_a_model_that_records_works_with_mlx_lms_own_cache() -> None:
    """As it did before."""
    from mlx_lm.models.cache import make_prompt_cache

    model = tiny_model("qwen3_5")
    caches = layer_caches(model)
    expected = run(model, caches, TEXT[:9])
    assert mx.array_equal(model(mx.array([TEXT[:9]]), cache=make_prompt_cache(model))[0], expected)


def test_state_that_is_written_outside_of_a_recorded_mixer_is_refused() -> None:
    """Before the first token, naming the layer."""
    cache = RecurrentCache(2, "layers.5")
    with pytest.raises(RollbackError, match=r"layers\.5.*not recorded"):
        cache[0] = mx.zeros(3)


def test_a_kind_of_state_that_nobody_knows_is_refused() -> None:
    """Naming the layer and the kind."""

    class OtherCache:
        pass

    class OtherModel(nn.Module):
        def make_cache(self) -> list[OtherCache]:
            return [OtherCache()]

    with pytest.raises(UnsupportedTensorError, match=r"layers\.0 .*OtherCache"):
        layer_caches(OtherModel())  # type: ignore[no-untyped-call]  # nn.Module's


def test_a_reply_says_which_layers_had_to_read_weights_again() -> None:
    """In the figures, by name; with a tape there is nothing to say."""
    for name in ("qwen3_5", "mamba"):
        stats, state = DecodeStats(), state_of(name)
        finish(start(state, TEXT[:9], depth=3, stats=stats))
        assert not [reason for reason in stats.fallbacks if "again" in reason]
    stats = DecodeStats()
    with patch.object(Playback, "_next", return_value=None):
        finish(start(state_of("mamba"), TEXT[:9], depth=3, stats=stats))
    assert stats.fallbacks["layers run again to undo a draft"] > 0


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
    name=st.sampled_from([*TAPED, "gemma3_text", "llama4", "falcon_h1"]),
    rounds=st.lists(
        st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), max_size=7
    ),
)
def test_any_pattern_of_acceptance(name: str, rounds: list[tuple[int, int]]) -> None:
    """Blocks of any length, any part of them kept: every array is that of single tokens."""
    model = tiny_model(name)
    caches, position = prefilled(model, NUM_PREFILLED), NUM_PREFILLED
    for num_rows, num_kept in rounds:
        round_of(model, caches, position, num_rows, num_kept)
        position += num_kept
    assert hold_the_same(caches, stepped(model, position))
