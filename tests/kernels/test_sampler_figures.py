"""Choosing a token reads the vocabulary as often as it must, and writes what is asked for alone."""

from functools import cache

import pytest

from tests.kernels.platforms import needs_linux
from tests.kernels.sampler_figures import PAGE, PIECES, Traffic, line, traffic

NARROW = 9001  # columns: two chunks
# Rows of float32 that are read and written: four rows of float16 logits are two of them. The few
# per cent more are candidates, sums of segments and shapes.
NEEDED = {
    "greedy, 4 rows": (2, 4),
    "temperature, 4 rows": (4, 4),
    "top-k 40, 4 rows": (2, 4),
    "draw, 1 row": (1, 0),
    "rejection, 3 drawn tokens": (2, 0),
    "rejection, 3 one-hot tokens": (1, 0),
    "block, 3 drawn tokens": (7, 0),
}


@cache
def counted(name: str, *, by_kernels: bool) -> Traffic:
    return traffic(PIECES[name](NARROW), NARROW, by_kernels=by_kernels)


def test_the_page_has_every_piece() -> None:
    stated = [text.split("|")[1].strip() for text in PAGE.read_text().splitlines() if "|" in text]
    assert [name for name in stated if name in PIECES] == list(PIECES)


@needs_linux
@pytest.mark.parametrize("name", NEEDED)
def test_no_row_is_read_or_written_in_vain(name: str) -> None:
    found = counted(name, by_kernels=True)
    read, written = NEEDED[name]
    assert read <= found.read < read + 0.75
    assert written <= found.written < written + 0.5


@needs_linux
@pytest.mark.parametrize("name", PIECES)
def test_kernels_move_less_than_operations(name: str) -> None:
    """By half or more, with fewer launches."""
    before, after = (counted(name, by_kernels=k) for k in (False, True))
    assert after.read + after.written < (before.read + before.written) / 2
    assert after.launches < before.launches


@needs_linux
@pytest.mark.slow
def test_the_page_states_what_is_counted() -> None:
    assert line("rejection, 3 drawn tokens") in PAGE.read_text()
