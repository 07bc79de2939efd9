from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from mtplx.cache import AttentionCache
from mtplx.cache.sinks import SINKS
from mtplx.models.drafter import HeadDrafter
from mtplx.models.head import BLOCK_FIELDS, HeadWeights, LlamaHead, dense_head, run_head
from mtplx.models.llama import LlamaBlock
from mtplx.models.matrix import DenseMatrix
from mtplx.models.shortlist import (
    LARGE_VOCABULARY,
    NUM_FREQUENT,
    Shortlist,
    frequent_ids,
    make_shortlist,
    widen,
)
from mtplx.speculation import Draft, DraftInput
from mtplx.training.unrolled import unroll
from tests.tiny import DIMS, head_drafter, random_prompt, same, tiny_head, tiny_target

Floats = NDArray[np.float64]

TARGET = tiny_target()
TEXT = random_prompt(16)
NUM_ROWS = 11  # committed; row i is made with token i + 1


def committed(num_rows: int = NUM_ROWS) -> DraftInput:
    hidden = TARGET.normalise(TARGET.forward(mx.array(TEXT[:num_rows]), TARGET.make_cache()))
    return DraftInput(hidden, mx.array(TEXT[1 : num_rows + 1]))


def follow(
    script: Sequence[int], seen: list[mx.array]
) -> Callable[[mx.array, int], tuple[mx.array, None]]:
    """Draw what a script says, and note the logits."""

    def draw(logits: mx.array, step: int) -> tuple[mx.array, None]:
        seen.append(logits)
        return mx.array([script[step]], dtype=mx.int32), None

    return draw


def rms_norm(x: Floats, weight: mx.array) -> Floats:
    normed = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + DIMS.norm_eps)
    return np.asarray(normed * np.array(weight, np.float64))


def weights_of(matrix: object) -> Floats:
    assert isinstance(matrix, DenseMatrix)
    return np.array(matrix.weight, np.float64)


def rotated(x: Floats) -> Floats:
    """x [T, heads, hd] at positions 0.., the two halves of a head turned against each other."""
    half = DIMS.head_dim // 2
    angles = np.arange(len(x))[:, None] * DIMS.rope_base ** (-np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    one, other = x[..., :half], x[..., half:]
    return np.concatenate([one * cos - other * sin, one * sin + other * cos], axis=-1)


def reference_block(block: LlamaBlock, x: Floats, window: int | None) -> Floats:
    """A decoder block over the whole sequence x [T, D], in float64."""
    rows, heads, kv_heads = len(x), DIMS.num_heads, DIMS.num_kv_heads
    qkv = rms_norm(x, block.attention_norm) @ weights_of(block.qkv).T
    q, k, v = np.split(qkv.reshape(rows, -1, DIMS.head_dim), [heads, heads + kv_heads], axis=1)
    q, k = rotated(q), rotated(k)
    mixed = np.empty_like(q)
    for head in range(heads):
        own = head * kv_heads // heads
        scores = q[:, head] @ k[:, own].T / np.sqrt(DIMS.head_dim)
        scores[~seen(rows, window)] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed[:, head] = weights / weights.sum(axis=-1, keepdims=True) @ v[:, own]
    x = x + mixed.reshape(rows, -1) @ weights_of(block.output).T
    gate, up = np.split(rms_norm(x, block.mlp_norm) @ weights_of(block.gate_up).T, 2, axis=-1)
    return np.asarray(x + (gate / (1 + np.exp(-gate)) * up) @ weights_of(block.down).T)


def seen(num_rows: int, window: int | None) -> NDArray[np.bool_]:
    """[T, T]: the rows before, or of them the first few and the nearest."""
    rows, columns = np.arange(num_rows)[:, None], np.arange(num_rows)
    near = columns > rows - (window or num_rows)
    return np.tri(num_rows, dtype=bool) & (near | (columns < SINKS))


def reference_logits(
    head: HeadWeights,
    script: Sequence[int],
    *,
    window: int | None = None,
    hidden_first: bool = False,
    recycle_before_norm: bool = False,
    shift: int = 0,
) -> Floats:
    """[K, V], the draft logits after the committed rows, drafting this script.

    The keyword arguments are the mistakes that a head's convention allows.
    """
    table, rows = weights_of(TARGET.embedding), committed()
    tokens = [*TEXT[1 - shift : NUM_ROWS + 1 - shift], *script]
    hidden = np.array(rows.hidden, np.float64)
    logits = []
    for step in range(len(script)):
        parts = [
            rms_norm(table[tokens[: NUM_ROWS + step]], head.enorm),
            rms_norm(hidden, head.hnorm),
        ]
        x = np.concatenate(parts[::-1] if hidden_first else parts, axis=-1)
        x = x @ weights_of(head.eh_proj).T
        for block in head.blocks:
            x = reference_block(block, x, window)
        g = rms_norm(x, head.norm)
        logits.append(g[-1] @ weights_of(TARGET.lm_head).T)
        hidden = np.concatenate([hidden, (x if recycle_before_norm else g)[-1:]])
    return np.stack(logits)


def drafted_logits(head: HeadWeights, script: Sequence[int], window: int | None = None) -> Floats:
    """[K, V], from the production drafter."""
    found: list[mx.array] = []
    drafter = head_drafter(TARGET, head)
    drafter.look_back(window)
    drafter.propose(committed(), len(script), follow(script, found))
    return np.array(mx.concatenate(found), np.float64)


@pytest.mark.parametrize("num_blocks", [1, 2])
def test_a_window_hides_what_is_behind_it(num_blocks: int) -> None:
    """From the committed rows, which come in one pass, and from every drafted one."""
    head, script = tiny_head(num_blocks=num_blocks), [5, 9, 2]
    expected = reference_logits(head, script, window=3)
    assert np.abs(drafted_logits(head, script, window=3) - expected).max() < 1e-5
    assert np.abs(reference_logits(head, script) - expected).max() > 1e-3


@pytest.mark.parametrize("num_blocks", [1, 2])
def test_draft_logits_are_those_of_a_reference_in_float64(num_blocks: int) -> None:
    """Norms, order of the halves, recycled state and primed keys, three steps deep."""
    head, script = tiny_head(num_blocks=num_blocks), [3, 50, 17]
    expected = reference_logits(head, script)
    assert np.abs(drafted_logits(head, script) - expected).max() < 5e-5


@pytest.mark.parametrize(
    ("mistake", "first_step"),
    [
        ({"hidden_first": True}, 0),
        ({"recycle_before_norm": True}, 1),
        ({"shift": 1}, 0),
    ],
)
def test_another_convention_would_be_seen(mistake: dict[str, bool], first_step: int) -> None:
    """Each mistake changes the logits by far more than rounding, from the step it begins at."""
    head, script = tiny_head(), [3, 50, 17]
    wrong = reference_logits(head, script, **mistake)
    differences = np.abs(drafted_logits(head, script) - wrong).max(axis=1)
    assert (differences[first_step:] > 0.1).all()
    assert (differences[:first_step] < 5e-5).all()


@pytest.mark.parametrize("num_blocks", [1, 2])
def test_the_head_that_is_served_is_the_one_that_is_trained(num_blocks: int) -> None:
    """Four steps of every anchor, unrolled in training, are what a chain of drafts runs through."""
    head, depth = tiny_head(num_blocks=num_blocks), 4
    rows = committed()
    embedding = TARGET.embedding.rows(mx.array(TEXT[1 : NUM_ROWS + depth]))
    unrolled = unroll(DIMS, head, embedding[None], rows.hidden[None], depth)
    for anchor in range(NUM_ROWS):
        cache = [AttentionCache() for _ in head.blocks]
        hidden, g = rows.hidden[: anchor + 1], embedding[: anchor + 1]
        for step in range(depth):
            g = run_head(DIMS, head, g, hidden, cache)[-1:]
            difference = mx.abs(g[0] - unrolled[step][0, anchor]).max().item()
            assert isinstance(difference, float)
            assert difference < 2e-5
            hidden, g = g, embedding[anchor + 1 + step : anchor + 2 + step]


def test_training_parameters_make_the_same_head() -> None:
    """Under their names, each lands where it belongs, in any number of blocks."""
    head = tiny_head(num_blocks=2)
    parameters = {
        "enorm": head.enorm,
        "hnorm": head.hnorm,
        "eh_proj": head.eh_proj.arrays()[0],
        "norm": head.norm,
    }
    for i, block in enumerate(head.blocks):
        for name in BLOCK_FIELDS:
            value = getattr(block, name)
            parameters[f"blocks.{i}.{name}"] = (
                value if isinstance(value, mx.array) else value.arrays()[0]
            )
    made = dense_head(parameters, 2)
    pairs = zip(made.arrays(), head.arrays(), strict=True)
    assert all(mx.array_equal(a, b) for a, b in pairs)


def test_observing_in_parts_is_observing_at_once() -> None:
    """Committed rows may come in any portions, the last of them with the proposal."""
    rows = committed()
    drafter, seen = head_drafter(TARGET), list[mx.array]()
    for start, end in ((0, 4), (4, 5), (5, 9)):
        drafter.observe(DraftInput(rows.hidden[start:end], rows.token_ids[start:end]))
    last = DraftInput(rows.hidden[9:], rows.token_ids[9:])
    drafter.propose(last, 3, follow([3, 50, 17], seen))
    assert drafter.num_rows == NUM_ROWS
    alone: list[mx.array] = []
    head_drafter(TARGET).propose(rows, 3, follow([3, 50, 17], alone))
    assert same(mx.concatenate(seen), mx.concatenate(alone))


@pytest.mark.parametrize("num_tokens", [1, 4])
def test_what_was_proposed_is_forgotten(num_tokens: int) -> None:
    """After keep the state is that of the committed rows, and so is the next proposal."""
    rows, drafter = committed(), head_drafter(TARGET)
    first, second = list[mx.array](), list[mx.array]()
    drafter.propose(committed(NUM_ROWS - 1), num_tokens, follow([9, 9, 9, 9], []))
    drafter.keep()
    assert drafter.num_rows == NUM_ROWS - 1
    last = DraftInput(rows.hidden[-1:], rows.token_ids[-1:])
    drafter.propose(last, 2, follow([3, 50], first))
    head_drafter(TARGET).propose(rows, 2, follow([3, 50], second))
    assert same(mx.concatenate(first), mx.concatenate(second))


def test_going_back_is_never_having_gone_further() -> None:
    """A rewound drafter continues as one that only ever saw the first rows."""
    rows, drafter = committed(), head_drafter(TARGET)
    drafter.observe(rows)
    drafter.rewind(6)
    assert drafter.num_rows == 6
    again, alone = list[mx.array](), list[mx.array]()
    drafter.propose(DraftInput(rows.hidden[6:8], rows.token_ids[6:8]), 1, follow([1], again))
    head_drafter(TARGET).propose(committed(8), 1, follow([1], alone))
    assert same(again[0], alone[0])


def proposal(shortlist: Shortlist, sampled: bool) -> Draft:
    def draw(logits: mx.array, step: int) -> tuple[mx.array, mx.array | None]:
        assert logits.shape == (1, len(shortlist.ids.tolist()))  # type: ignore[arg-type]
        column = mx.argmax(logits, axis=-1).astype(mx.int32)
        return column, mx.softmax(logits, axis=-1) if sampled else None

    return HeadDrafter(LlamaHead(TARGET, tiny_head()), shortlist).propose(committed(), 3, draw)


@pytest.mark.parametrize("sampled", [False, True])
def test_a_draft_names_tokens_and_the_columns_they_come_from(sampled: bool) -> None:
    """Ids are the vocabulary's, q is over the shortlist in its order; greedy drafts have none."""
    ids = mx.array([5, 9, 20, 33, 40, 63, 2], dtype=mx.int32)  # widened: not ascending
    draft = proposal(make_shortlist(TARGET.lm_head, ids), sampled)
    assert draft.token_ids.dtype == mx.int32
    assert set(draft.token_ids.tolist()) <= set(ids.tolist())  # type: ignore[arg-type]
    if not sampled:
        assert draft.probs is None
        assert draft.support is None
        return
    assert draft.probs is not None
    assert draft.support is not None
    assert draft.probs.shape == (3, 7)
    assert mx.array_equal(draft.support, ids)
    assert mx.array_equal(draft.support[mx.argmax(draft.probs, axis=-1)], draft.token_ids)


def test_a_shortlist_gives_the_logits_of_its_tokens() -> None:
    """Its rows are those of lm_head, before and after it is widened."""
    g = mx.random.normal((2, DIMS.hidden_size), key=mx.random.key(1))
    whole = TARGET.lm_head(g)
    short = make_shortlist(TARGET.lm_head, mx.array([5, 9, 20], dtype=mx.int32))
    wide = widen(short, TARGET.lm_head, [20, 63, 2, 63, 5])
    assert sorted(wide.ids.tolist()) == [2, 5, 9, 20, 63]  # type: ignore[type-var, arg-type]
    assert wide.ids.dtype == mx.int32
    for shortlist in (short, wide):
        assert same(shortlist.logits(g), whole[:, shortlist.ids])
    assert widen(short, TARGET.lm_head, [9, 5]) is short


def test_a_large_vocabulary_is_cut_to_its_frequent_ids() -> None:
    """The first ones, and the special ones behind them that the vocabulary has."""
    assert frequent_ids(LARGE_VOCABULARY, [60_000]) is None
    ids = frequent_ids(LARGE_VOCABULARY + 1, [60_000, 5, 40_000, 90_000])
    assert ids is not None
    assert ids.dtype == mx.int32
    assert ids.tolist() == [*range(NUM_FREQUENT), 40_000, 60_000]


def test_memory_is_that_of_the_heads_caches() -> None:
    """Nothing before the first row, then what its layers hold."""
    drafter = head_drafter(TARGET, tiny_head(num_blocks=2))
    assert drafter.num_bytes == 0
    drafter.observe(committed())
    assert drafter.num_bytes == 2 * drafter.cache[0].num_bytes > 0
