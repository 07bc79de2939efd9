"""MLX's compiler off: on a CPU it calls g++ for each new expression, seconds for the same bits."""

from collections.abc import Iterator

import mlx.core as mx
import pytest


@pytest.fixture(autouse=True, scope="module")
def _without_compiler() -> Iterator[None]:
    mx.disable_compile()
    yield
    mx.enable_compile()
