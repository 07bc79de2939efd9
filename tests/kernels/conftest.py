"""Kernels are run by the emulator, and on a Mac by its GPU as well: `pytest -m metal`."""

from typing import TYPE_CHECKING

import pytest

from tests.kernels.platforms import needs_linux

# MLX is imported in the fixture: this file may be read before the suite has chosen the BLAS.
if TYPE_CHECKING:
    from mtplx.kernels.source import Maker


@pytest.fixture(
    params=[
        pytest.param("host", marks=needs_linux),
        pytest.param("gpu", marks=pytest.mark.metal),
    ]
)
def maker(request: pytest.FixtureRequest) -> "Maker":
    from mtplx.kernels.source import metal
    from tests.kernels.hosts import fast

    return fast if request.param == "host" else metal
