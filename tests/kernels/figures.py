"""Traffic and work of the kernels, counted. `python -m tests.kernels.figures` writes the page.

Counts are the same on every machine: accesses of the checked build, operations of the counted one
(tests/metal_host/traffic.py, count_text.py). They say nothing about a GPU's clock.
"""

from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from mtplx.kernels.product import RowTile, Tiles, multiply
from tests.kernels.hosts import Watch
from tests.kernels.matrices import MATRICES, Matrix

PAGE = Path(__file__).parents[2] / "docs" / "kernels.md"
START, END = "<!-- figures -->\n", "<!-- end of figures -->\n"
ROWS, COLUMNS = 8, 4096  # of the matrix that operations are counted on
COUNTED = (1, 4, 8)  # rows of x


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one format. operations: per weight, by rows of x. bits: per weight, as stored."""

    name: str
    bits: float
    operations: dict[int, float]

    @property
    def ratio(self) -> float:
        """What eight rows take of what one takes."""
        return self.operations[8] / self.operations[1]


def random_rows(count: int, columns: int, dtype: mx.Dtype = mx.float16) -> mx.array:
    """Of a size that keeps products with random blocks within half precision."""
    rows = mx.random.normal((count, columns), scale=1 / 64, key=mx.random.key(count))
    return rows.astype(dtype)


def weight_bytes(matrix: Matrix, rows: int) -> int:
    """Bytes of the matrix that a product with so many rows of x fetches."""
    watch = Watch(checked=True)
    multiply(random_rows(rows, matrix.packed.shape[1]), matrix.packed, maker=watch)
    fetched = watch.results[0].fetched()
    return fetched["w"] + fetched["scales"] + fetched["biases"]


def operations(matrix: Matrix, rows: int, columns: int | None = None) -> float:
    """Operations per weight of a product with so many rows of x in float16."""
    watch = Watch(counted=True)
    x = random_rows(rows, matrix.packed.shape[1])
    tiles = Tiles() if columns is None else Tiles(few=RowTile(columns=columns))
    multiply(x, matrix.packed, tiles=tiles, maker=watch)
    return sum(watch.results[0].outcome.operations.values()) / matrix.weights.size


def figures(name: str) -> Figures:
    matrix = MATRICES[name](ROWS, COLUMNS)
    bits = 8 * matrix.num_bytes / matrix.weights.size
    return Figures(name, bits, {rows: operations(matrix, rows) for rows in COUNTED})


def line(row: Figures) -> str:
    """The table's line of one format."""
    counts = " | ".join(f"{row.operations[rows]:.1f}" for rows in COUNTED)
    return f"| {row.name} | {row.bits:.4g} | {counts} | {row.ratio:.1f} |\n"


def table() -> str:
    head = " | ".join(f"{rows} rows" if rows > 1 else "1 row" for rows in COUNTED)
    start = f"| format | bits | {head} | 8 rows / 1 row |\n|---" + "|---" * 5 + "|\n"
    return start + "".join(line(figures(name)) for name in MATRICES)


def main() -> None:
    made = table()  # which takes minutes, in which the page may change
    before, rest = PAGE.read_text().split(START)
    _, after = rest.split(END)
    PAGE.write_text(before + START + made + END + after)


if __name__ == "__main__":
    main()
