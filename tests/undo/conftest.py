"""MLX's compiler off: on a CPU it calls g++ for each new expression, seconds for the same bits."""

from collections.abc import Iterator

import pytest

# MLX is imported in the fixtures: this file may be read before the suite has chosen the BLAS.


@pytest.fixture(autouse=True, scope="module")
def _without_compiler() -> Iterator[None]:
    import mlx.core as mx

    mx.disable_compile()
    yield
    mx.enable_compile()


@pytest.fixture
def mlx_lms_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gated delta rule as mlx-lm computes it, which a fast BLAS takes another way to."""
    from mtplx.models import gated_delta

    monkeypatch.setattr(gated_delta, "rule_here", lambda maker=None: None)
