"""What MLX's attention is given."""

from typing import Any

import mlx.core as mx
import pytest


def watch_attention(monkeypatch: pytest.MonkeyPatch) -> list[set[mx.Dtype]]:
    """The types of queries, keys and values of every call from now on."""
    seen: list[set[mx.Dtype]] = []
    attend = mx.fast.scaled_dot_product_attention

    def watched(q: mx.array, k: mx.array, v: mx.array, **more: Any) -> mx.array:
        seen.append({q.dtype, k.dtype, v.dtype})
        return attend(q, k, v, **more)

    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", watched)
    return seen
