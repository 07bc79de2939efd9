"""The gated delta rule as a kernel: right, the same in a block as one token at a time, undone."""

from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from mtplx.kernels.gated_delta import DeltaTape, refold, step
from mtplx.kernels.source import Maker
from tests.kernels.hosts import Watch, checked
from tests.kernels.platforms import needs_linux
from tests.metal_host.static_check import check_static, lint

Doubles = NDArray[np.float64]
HEADS, KEY_HEADS = 4, 2


@dataclass(frozen=True, slots=True)
class Block:
    """Tokens, as `step` takes them, and the state before them."""

    q: mx.array
    k: mx.array
    v: mx.array
    decay: mx.array
    beta: mx.array
    state: mx.array
    tiled: bool = False

    def tokens(self, first: int, last: int) -> "Block":
        """Some of the tokens, behind the same state."""
        parts = {name: getattr(self, name)[:, first:last] for name in ("q", "k", "v")}
        gates = {name: getattr(self, name)[:, first:last] for name in ("decay", "beta")}
        return replace(self, **parts, **gates)

    def run(self, maker: Maker) -> tuple[mx.array, mx.array, DeltaTape]:
        arrays = (self.q, self.k, self.v, self.decay, self.beta, self.state)
        return step(*arrays, tiled=self.tiled, maker=maker)


def random_block(
    num_tokens: int,
    *,
    width: int = 32,
    rows: int = 6,
    batch: int = 1,
    dtype: mx.Dtype = mx.float32,
    per_key: bool = False,
    tiled: bool = False,
) -> Block:
    rng = np.random.default_rng(num_tokens)

    def normal(*shape: int) -> mx.array:
        return mx.array(rng.normal(size=(batch, *shape)).astype(np.float32))

    k = normal(num_tokens, KEY_HEADS, width)
    gates = (num_tokens, HEADS, width) if per_key else (num_tokens, HEADS)
    return Block(
        (normal(num_tokens, KEY_HEADS, width) / width**0.5).astype(dtype),
        (k / mx.linalg.norm(k, axis=-1, keepdims=True)).astype(dtype),
        normal(num_tokens, HEADS, rows).astype(dtype),
        mx.exp(-0.3 * mx.abs(normal(*gates))),
        mx.sigmoid(normal(num_tokens, HEADS)).astype(dtype),
        normal(HEADS, rows, width),
        tiled,
    )


def in_double(block: Block) -> tuple[Doubles, Doubles]:
    """Outputs [T, H, Dv] and the last state [H, Dv, Dk] of one sequence, by the formula."""
    arrays = (block.q, block.k, block.v, block.decay, block.beta, block.state)
    q, k, v, decay, beta, state = (
        np.array(array.astype(mx.float32), dtype=np.float64)[0] for array in arrays
    )
    state, outputs = state.copy(), np.zeros(v.shape)
    for t in range(len(q)):
        for head in range(HEADS):
            of_keys = head % KEY_HEADS if block.tiled else head * KEY_HEADS // HEADS
            left = state[head] * decay[t, head]
            written = beta[t, head] * (v[t, head] - left @ k[t, of_keys])
            state[head] = left + np.outer(written, k[t, of_keys])
            outputs[t, head] = state[head] @ q[t, of_keys]
    return outputs, state


def error(block: Block, maker: Maker) -> float:
    """The largest error of outputs and state."""
    y, state, _ = block.run(maker)
    outputs, last = in_double(block)
    off_y = np.abs(np.array(y.astype(mx.float32))[0] - outputs).max()
    return float(max(off_y, np.abs(np.array(state)[0] - last).max()))


@pytest.mark.parametrize("width", [8, 24, 32, 128])
def test_every_size_of_key(width: int, maker: Maker) -> None:
    assert error(random_block(3, width=width), maker) < 1e-5


@pytest.mark.parametrize("rows", [1, 4, 37])
def test_every_number_of_rows(rows: int, maker: Maker) -> None:
    """Fewer than a SIMD-group holds, as many, and more than a threadgroup holds."""
    assert error(random_block(2, rows=rows), maker) < 1e-5


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("per_key", [False, True])
def test_every_order_of_heads_and_kind_of_decay(tiled: bool, per_key: bool, maker: Maker) -> None:
    assert error(random_block(3, per_key=per_key, tiled=tiled), maker) < 1e-5


@pytest.mark.parametrize(("dtype", "bound"), [(mx.float16, 2e-3), (mx.bfloat16, 2e-2)])
def test_half_precision_is_rounded_once(dtype: mx.Dtype, bound: float, maker: Maker) -> None:
    """Outputs at their end; the state stays in float32."""
    block = random_block(4, dtype=dtype)
    assert error(block, maker) < bound
    y, state, _ = block.run(maker)
    assert (y.dtype, state.dtype) == (dtype, mx.float32)
    assert np.abs(np.array(state)[0] - in_double(block)[1]).max() < 1e-5


@pytest.mark.parametrize("per_key", [False, True])
def test_mlx_lm_computes_the_same(per_key: bool, maker: Maker) -> None:
    """Its own steps, made of MLX's operations, over two sequences."""
    from mlx_lm.models.gated_delta import gated_delta_ops

    block = random_block(5, batch=2, per_key=per_key)
    arrays = (block.q, block.k, block.v, block.decay, block.beta, block.state)
    for found, expected in zip(block.run(maker)[:2], gated_delta_ops(*arrays), strict=True):
        assert mx.abs(found - expected).max() < 1e-5


@pytest.mark.parametrize("num_tokens", [2, 5, 8])
@pytest.mark.parametrize("per_key", [False, True])
def test_a_block_is_its_tokens_one_at_a_time(num_tokens: int, per_key: bool, maker: Maker) -> None:
    """Outputs, state and tape, bit for bit; and so is a part of it that is folded again."""
    block = random_block(num_tokens, per_key=per_key, dtype=mx.bfloat16)
    y, last, tape = block.run(maker)
    single = block
    for t in range(num_tokens):
        assert mx.array_equal(tape.state_after(t), single.state)
        y_t, state, of_one = replace(block.tokens(t, t + 1), state=single.state).run(maker)
        assert mx.array_equal(y[:, t : t + 1], y_t)
        assert mx.array_equal(tape.written[:, t : t + 1], of_one.written)
        single = replace(block, state=state)
    assert mx.array_equal(last, single.state)
    assert mx.array_equal(tape.state_after(num_tokens), last)


def test_how_many_tokens_are_kept_may_be_computed(maker: Maker) -> None:
    """It is an array, which nobody has to have read: shapes do not depend on it."""
    block = random_block(4, tiled=True)
    tape = block.run(maker)[2]
    accepted = mx.array([True, True, False])
    kept = refold(tape, mx.sum(mx.cumprod(accepted)) + 1)
    assert mx.array_equal(kept, block.tokens(0, 3).run(maker)[1])


@needs_linux
@pytest.mark.parametrize("rows", [3, 5])
@pytest.mark.parametrize("per_key", [False, True])
def test_nothing_is_undefined(rows: int, per_key: bool) -> None:
    """No race, nothing out of bounds or uninitialised, no misaligned read."""
    block = random_block(2, width=16, rows=rows, per_key=per_key)
    block.run(checked)[2].state_after(1)


@needs_linux
@pytest.mark.parametrize("per_key", [False, True])
def test_metal_would_take_the_text(per_key: bool) -> None:
    watch = Watch()
    for dtype in (mx.float32, mx.bfloat16):
        # One token of one-row heads: gates and values lie in constant memory.
        block = random_block(1, width=16, rows=1, per_key=per_key, dtype=dtype)
        block.run(watch)[2].state_after(1)
    for result in watch.results:
        assert check_static(result.text) == []
        assert lint(result.text) == []


@needs_linux
def test_a_block_reads_and_writes_its_state_once() -> None:
    watch = Watch(checked=True)
    block = random_block(6, width=32, rows=8)
    block.run(watch)
    assert watch.results[0].fetched()["before"] == block.state.nbytes


DECAY = "      state[i] = state[i] * decay_of<DK, PER_KEY>(g, at, column);\n"
SUM = "      out = fma(state[i], four_at(q + at_keys + column), out);\n"
# Slips of the hand, each with what it becomes.
WRONG = {
    "heads in the other order": ("return TILED ?", "return !TILED ?"),
    "decay after the write": (DECAY + "      found", "      found", SUM, DECAY + SUM),
    "no decay": (DECAY, ""),
    "outputs without queries": ("four_at(q + at_keys + column), out", "state[i], out"),
    "a lane is left out of sums": ("apart < LANES;", "apart < LANES / 2;"),
    "beta of another head": ("float(beta[at])", "float(beta[t])"),
    "decay of another column": (
        "const uint from = at * DK + column;",
        "const uint from = at * DK;",
    ),
}


@needs_linux
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_kernel_gives_wrong_numbers(case: str) -> None:
    """The comparisons above would fail."""
    words = WRONG[case]
    watch = Watch(replace=dict(zip(words[::2], words[1::2], strict=True)))
    assert error(random_block(3, per_key=True), Watch()) < 1e-5
    assert not error(random_block(3, per_key=True), watch) < 1e-2


REFOLDED = "    state = fma(four_at(k + at_keys), float4(written[at * shape.rows + row]), state);\n"
WRONG_REFOLD = {
    "one token more": ("t < first + count;", "t <= first + count;"),
    "one token less": ("t < first + count;", "t + 1 < first + count;"),
    "rounded between product and sum": (
        REFOLDED,
        "state = state + four_at(k + at_keys) * float4(written[at * shape.rows + row]);\n",
    ),
    "the decay of the write too": (
        REFOLDED,
        REFOLDED.replace("state);", "state * decay_of<DK, PER_KEY>(g, at, column));"),
    ),
}


@needs_linux
@pytest.mark.parametrize("case", WRONG_REFOLD)
def test_a_wrong_refold_gives_other_bits(case: str) -> None:
    old, new = WRONG_REFOLD[case]
    block = random_block(4)
    tape = block.run(Watch())[2]
    wrong = replace(tape, maker=Watch(replace={old: new}))
    expected = block.tokens(0, 2).run(Watch())[1]
    assert mx.array_equal(tape.state_after(2), expected)
    assert not mx.array_equal(wrong.state_after(2), expected)


# Faults that may give right numbers, and what is said of them.
FOUND = {
    "every lane writes": ("    if (lane == 0) {", "    {", "data race"),
    "rows behind the last": ("row >= shape.rows", "false", "out-of-bounds read"),
    "one quad of columns too far": (
        "column = 4 * (i * LANES + lane)",
        "column = 4 * (i * LANES + lane + 1)",
        "out-of-bounds read",
    ),
}


@needs_linux
@pytest.mark.parametrize("case", FOUND)
def test_a_fault_is_found(case: str) -> None:
    """In the checked build, whatever the numbers are."""
    old, new, said = FOUND[case]
    watch = Watch(checked=True, replace={old: new})
    random_block(2, rows=5).run(watch)
    assert any(said in finding for finding in watch.results[0].findings)
