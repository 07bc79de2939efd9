"""The figures in docs/kernels.md are those that are counted, and eight rows cost what they may."""

import pytest

from tests.kernels.figures import COUNTED, PAGE, figures, operations
from tests.kernels.matrices import MATRICES
from tests.kernels.platforms import needs_linux

STATED = {
    cells[0]: [float(cell) for cell in cells[1:]]
    for cells in (
        [cell.strip() for cell in line.strip("|\n").split("|")]
        for line in PAGE.read_text().splitlines()
        if line.startswith("| ") and line.split("|")[1].strip() in MATRICES
    )
}
# What eight rows may take of what one row takes. They need eight multiplications per weight where
# one row needs one, so formats that decode in two or three operations cannot come nearer.
SUPERBLOCKS = dict.fromkeys(("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"), 2.5)
FLAT = dict.fromkeys(("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"), 3.0)


def test_the_page_has_every_format() -> None:
    assert list(STATED) == list(MATRICES)


@needs_linux
@pytest.mark.slow
@pytest.mark.parametrize("name", ["Q4_0", "Q6_K", "IQ2_XS", "NVFP4 rows"])
def test_the_page_states_what_is_counted(name: str) -> None:
    """Within what another version of the compiler may change."""
    row = figures(name)
    counted = [row.bits, *(row.operations[rows] for rows in COUNTED), row.ratio]
    assert STATED[name] == pytest.approx(counted, rel=0.1)


@pytest.mark.parametrize("name", SUPERBLOCKS | FLAT)
def test_the_page_states_what_eight_rows_may_cost(name: str) -> None:
    assert STATED[name][-1] <= (SUPERBLOCKS | FLAT)[name]


@needs_linux
def test_eight_rows_decode_once() -> None:
    """Each row adds the operations of its products and no decoding."""
    matrix = MATRICES["Q4_K"](8, 1024)
    one, four = operations(matrix, 1), operations(matrix, 4)
    assert four - one < 3 * 1.6
