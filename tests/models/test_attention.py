"""Rotary positions and attention put together for a CPU, against MLX's own."""

import mlx.core as mx
import pytest

from mtplx.models.attention import Rows, attend, rotate, rows_at

BASE = 10_000.0


def normal(*shape: int, seed: int = 0) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed))


@pytest.mark.parametrize(("offset", "num_rows"), [(0, 5), (7, 1), (3_000, 4)])
def test_positions_turn_heads_as_mlx_does(offset: int, num_rows: int) -> None:
    """Heads are rotated to the same positions as by mx.fast.rope, to the rounding of an angle."""
    x = normal(2, 3, num_rows, 16)
    turned = rotate(x, rows_at(offset, num_rows, 16, BASE), BASE)
    expected = rotate(x, Rows(offset), BASE)
    assert mx.allclose(turned, expected, rtol=0, atol=1e-6 * (offset + 10)).item()


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (4, 4), (3, 1)])
@pytest.mark.parametrize(("offset", "num_rows"), [(0, 6), (9, 1), (9, 4)])
def test_attention_is_mlx_s(heads: int, kv_heads: int, offset: int, num_rows: int) -> None:
    """Grouped heads and the causal mask give what MLX's own attention gives."""
    q = 3 * normal(1, heads, num_rows, 8)
    keys = normal(1, kv_heads, offset + num_rows, 8, seed=1)
    values = normal(1, kv_heads, offset + num_rows, 8, seed=2)
    mixed = attend(q, keys, values, rows_at(offset, num_rows, 8, BASE))
    expected = attend(q, keys, values, Rows(offset))
    assert mx.allclose(mixed, expected, rtol=0, atol=2e-6).item()


def test_scores_of_any_size_are_weighed() -> None:
    """Scores far beyond what exp can hold still give the value of the greatest of them."""
    keys = mx.array([[[[1.0, 0.0], [0.0, 1.0]]]])
    values = mx.array([[[[5.0, 6.0], [7.0, 8.0]]]])
    mixed = attend(mx.array([[[[1e6, -1e6]]]]), keys, values, rows_at(1, 1, 2, BASE))
    assert mixed.tolist() == [[[[5.0, 6.0]]]]
