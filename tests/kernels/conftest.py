"""Kernels are run by the emulator, and on a Mac by its GPU as well: `pytest -m metal`."""

import pytest

from mtplx.kernels.source import Maker, metal
from tests.kernels.hosts import fast, needs_linux


@pytest.fixture(
    params=[
        pytest.param(fast, id="host", marks=needs_linux),
        pytest.param(metal, id="gpu", marks=pytest.mark.metal),
    ]
)
def maker(request: pytest.FixtureRequest) -> Maker:
    made: Maker = request.param
    return made
