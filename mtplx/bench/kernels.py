"""How fast kernels are: products with packed weights, by format and number of rows.

A product with few rows is bounded by reading the weights, so it is told in bytes of them per
second, beside what this machine can read. The matrices hold random bits.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np

from mtplx.bench.measure import visiting_order
from mtplx.bench.report import Table
from mtplx.bench.rows import Spread, spread
from mtplx.errors import NoGpuError
from mtplx.kernels.packing import (
    FP8_TILE,
    GGUF_PACKINGS,
    PackedWeight,
    affine_weight,
    fp8_weight,
    gguf_weight,
    mxfp4_weight,
    mxfp8_weight,
    nvfp4_weight,
)
from mtplx.kernels.product import multiply
from mtplx.kernels.source import Maker, metal
from mtplx.loading.gguf_affine import AFFINE_FORMATS, affine_parts
from mtplx.quant.formats import BLOCK_FORMATS

COLUMNS = 4096
NUM_ROWS = (1, 2, 4, 8)  # of activations
NUM_BYTES = 256 << 20  # of a matrix: far more than caches hold
NUM_REPEATS = 9
OURS, MLX = "mtplx", "mlx"

Product = Callable[[mx.array], mx.array]
Run = Callable[[], mx.array | list[mx.array]]
Seconds = Callable[[Run], float]


@dataclass(frozen=True, slots=True)
class Packed:
    """A matrix in one format. theirs: MLX's product with the same weights, where it has one."""

    weight: PackedWeight
    theirs: Product | None = None

    @property
    def num_bytes(self) -> int:
        """Of its planes. The multipliers of sums, as many as results, are not counted."""
        planes = (self.weight.codes, self.weight.scales, self.weight.biases)
        return sum(plane.nbytes for plane in planes if plane is not None)


@dataclass(frozen=True, slots=True)
class Arm:
    """What is timed: whose kernel, for how many rows, and the bytes that its speed is told in."""

    kernel: str
    num_rows: int
    num_bytes: int
    run: Run


@dataclass(frozen=True, slots=True)
class KernelRow:
    """What one arm reached. name: the weights' format, or the step. gb_per_s: by repeat."""

    name: str
    kernel: str
    num_rows: int
    gb_per_s: Spread
    share_of_ceiling: float

    def to_json(self, kind: str) -> dict[str, object]:
        """Plain values. kind: what the name is of."""
        speed = self.gb_per_s
        return {
            kind: self.name,
            "kernel": self.kernel,
            "rows": self.num_rows,
            "gb_per_s": speed.median,
            "gb_per_s_p20": speed.p20,
            "gb_per_s_p80": speed.p80,
            "share_of_read_ceiling": self.share_of_ceiling,
        }


def require_gpu() -> None:
    """Raises NoGpuError where Metal kernels cannot run."""
    if not mx.metal.is_available():
        raise NoGpuError(
            "Kernels are measured on a Metal GPU, and MLX finds none here. "
            "`mtplx bench` without --kernels measures this machine as it is."
        )


def seconds(run: Run) -> float:
    """How long computing takes. Saying what is to be computed is left out: where tokens are
    decoded, the host does that while the GPU works."""
    asked = run()
    started_s = time.perf_counter()
    mx.eval(asked)
    return time.perf_counter() - started_s


def measure_format(
    name: str, matrix: Packed, ceiling: float, took: Seconds = seconds, maker: Maker = metal
) -> list[KernelRow]:
    """Ours and MLX's product with every number of rows. ceiling: bytes per second."""
    return measure_arms(name, make_arms(matrix, maker), ceiling, took)


def measure_arms(name: str, arms: Sequence[Arm], ceiling: float, took: Seconds) -> list[KernelRow]:
    """All of them in turns. ceiling: bytes per second."""
    for arm in arms:
        took(arm.run)  # which compiles it
    speeds: dict[tuple[str, int], list[float]] = {(a.kernel, a.num_rows): [] for a in arms}
    for repeat in range(NUM_REPEATS):
        for arm in visiting_order(arms, repeat):
            speeds[arm.kernel, arm.num_rows].append(arm.num_bytes / took(arm.run) / 1e9)
    return [_row(name, *key, values, ceiling / 1e9) for key, values in speeds.items()]


def _row(
    name: str, kernel: str, num_rows: int, values: Sequence[float], ceiling: float
) -> KernelRow:
    speed = spread(values)
    return KernelRow(name, kernel, num_rows, speed, speed.median / ceiling)


def make_arms(matrix: Packed, maker: Maker) -> list[Arm]:
    """Products with random activations in float16."""
    arms: list[Arm] = []
    for num_rows in NUM_ROWS:
        key = mx.random.key(num_rows)
        x = mx.random.normal((num_rows, matrix.weight.shape[1]), mx.float16, key=key)
        mx.eval(x)
        ours = partial(multiply, x, matrix.weight, maker=maker)
        arms.append(Arm(OURS, num_rows, matrix.num_bytes, ours))
        if matrix.theirs is not None:
            arms.append(Arm(MLX, num_rows, matrix.num_bytes, partial(matrix.theirs, x)))
    return arms


def matrices(num_bytes: int = NUM_BYTES) -> Iterator[tuple[str, Packed]]:
    """Every format with a matrix of about this size, one after the other in memory."""
    for name, make in FORMATS.items():
        yield name, make(num_bytes)


def _num_rows(num_bytes: int, bits: float) -> int:
    return max(1, int(num_bytes * 8 / bits) // COLUMNS)


def _random(*shape: int) -> mx.array:
    codes = mx.random.randint(0, 256, shape, mx.uint8, key=mx.random.key(shape[-1]))
    mx.eval(codes)
    return codes


def _scales(*shape: int) -> mx.array:
    """Of float16, all positive."""
    values = mx.random.uniform(0.01, 0.02, shape, mx.float16, key=mx.random.key(shape[-1]))
    mx.eval(values)
    return values


def _gguf(name: str, num_bytes: int) -> Packed:
    block = BLOCK_FORMATS[name]
    row_bytes = COLUMNS // block.block * block.num_bytes
    codes = _random(max(1, num_bytes // row_bytes), row_bytes)
    if name in AFFINE_FORMATS:
        return _gguf_that_mlx_reads(name, codes)
    return Packed(gguf_weight(name, codes, COLUMNS))


def _gguf_that_mlx_reads(name: str, codes: mx.array) -> Packed:
    """Blocks of which MLX makes affine groups without loss, with scales of about 2^-4."""
    fmt = AFFINE_FORMATS[name]
    raw = np.array(codes)
    blocks = raw.reshape(-1, fmt.block_bytes)
    blocks[:, [1, 3] if fmt.has_min else [1]] = 0x2C
    planes = [mx.array(plane) for plane in affine_parts(name, raw, fmt)]
    mx.eval(planes)
    theirs = _mlx_product(*planes, group_size=32, bits=fmt.bits)
    return Packed(gguf_weight(name, mx.array(raw), COLUMNS), theirs)


def _fp4(name: str, group: int, num_bytes: int) -> Packed:
    """A byte of scale for each group of weights, which MLX knows by this name."""
    rows = _num_rows(num_bytes, 4 + 8 / group)
    is_nvfp4 = name == "nvfp4"
    smallest = 48 if is_nvfp4 else 120  # 2^-1 of E4M3, 2^-7 of E8M0
    codes, scales = _random(rows, COLUMNS // 2), _random(rows, COLUMNS // group) % 8 + smallest
    mx.eval(scales)
    weight = nvfp4_weight(codes, scales, mx.array(1.0)) if is_nvfp4 else mxfp4_weight(codes, scales)
    theirs = _mlx_product(codes.view(mx.uint32), scales, mode=name, group_size=group, bits=4)
    return Packed(weight, theirs)


def _mxfp8(num_bytes: int) -> Packed:
    rows = _num_rows(num_bytes, 8.25)
    codes, scales = _random(rows, COLUMNS) & 0xBF, _random(rows, COLUMNS // 32) % 8 + 112
    mx.eval(codes, scales)
    theirs = _mlx_product(codes.view(mx.uint32), scales, mode="mxfp8", group_size=32, bits=8)
    return Packed(mxfp8_weight(codes, scales), theirs)


def _floats(name: str, dtype: mx.Dtype, num_bytes: int) -> Packed:
    rows = _num_rows(num_bytes, 16)
    weights = mx.random.normal((rows, COLUMNS), key=mx.random.key(rows)).astype(dtype)
    mx.eval(weights)
    codes = weights.view(mx.uint8)
    return Packed(gguf_weight(name, codes, COLUMNS), lambda x: x @ weights.T)


def _fp8(kind: str, num_bytes: int) -> Packed:
    rows = _num_rows(num_bytes, 8)
    shapes = {
        "tensor": (1,),
        "channel": (rows, 1),
        "blocks": (-(-rows // FP8_TILE), COLUMNS // FP8_TILE),
    }
    scales = _scales(*shapes[kind]).astype(mx.float32)
    codes = _random(rows, COLUMNS)
    return Packed(fp8_weight(codes, scales))


def _affine(bits: int, num_bytes: int) -> Packed:
    group = 64
    rows = _num_rows(num_bytes, bits + 32 / group)
    codes = _random(rows, COLUMNS * bits // 8).view(mx.uint32)
    scales, biases = _scales(rows, COLUMNS // group), -_scales(rows, COLUMNS // group)
    mx.eval(biases)
    weight = affine_weight(codes, scales, biases, bits=bits, group=group)
    theirs = _mlx_product(codes, scales, biases, group_size=group, bits=bits)
    return Packed(weight, theirs)


def _mlx_product(*planes: mx.array, **how: Any) -> Product:
    product: Any = mx.quantized_matmul
    return lambda x: product(x, *planes, transpose=True, **how)


FORMATS: Mapping[str, Callable[[int], Packed]] = {
    "F16": partial(_floats, "F16", mx.float16),
    "BF16": partial(_floats, "BF16", mx.bfloat16),
    **{name: partial(_gguf, name) for name in GGUF_PACKINGS},
    "NVFP4 rows": partial(_fp4, "nvfp4", 16),
    "MXFP4 rows": partial(_fp4, "mxfp4", 32),
    "MXFP8 rows": _mxfp8,
    "FP8 tensor": partial(_fp8, "tensor"),
    "FP8 channel": partial(_fp8, "channel"),
    "FP8 128 x 128": partial(_fp8, "blocks"),
    **{f"affine {bits} bit": partial(_affine, bits) for bits in (2, 3, 4, 5, 6, 8)},
}


def kernel_table(kind: str, rows: Sequence[KernelRow], title: str) -> Table:
    """GB/s of each name and kernel, a column for each number of rows. kind: what names are of."""
    lines: dict[tuple[str, str], dict[int, KernelRow]] = {}
    for row in rows:
        lines.setdefault((row.name, row.kernel), {})[row.num_rows] = row
    numbers = sorted({row.num_rows for row in rows})
    cells = tuple(
        (*names, *(_cell(found[num_rows]) for num_rows in numbers))
        for names, found in lines.items()
    )
    columns = (kind, "kernel", *(f"{n} row{'s' * (n > 1)}" for n in numbers))
    return Table(title, columns, cells, num_left=2)


def _cell(row: KernelRow) -> str:
    return f"{row.gb_per_s.median:.0f} {row.share_of_ceiling:.0%}"
