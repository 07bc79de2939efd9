"""MLX's own Metal kernels, as its wheel ships them, for the emulator to run."""

import re
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from tests.metal_host.build import MLX_HEADERS, build
from tests.metal_host.dtypes import Array, numpy_dtype, to_numpy
from tests.metal_host.launch import Argument, Mode, Outcome, launch
from tests.metal_host.text import BUILTIN_INDEX

_BASE = "mlx/backend/metal/kernels/"
_IN_PREAMBLE = {"utils.h", "bf16.h", "bf16_math.h", "complex.h", "defines.h", "logging.h"}
_INCLUDE = re.compile(r'^#include "(mlx/[^"]+)"$', re.M)
# A specialisation per address space; when a kernel is run, the address spaces are one.
_PER_SPACE = re.compile(
    r"template <typename T>\nstruct pointer_element<(?:device|constant|threadgroup) T\*> \{\n"
    r".*?\n\};\n",
    re.S,
)

GROUP_POSITION = "threadgroup_position_in_grid"
QMV = (GROUP_POSITION, "simdgroup_index_in_threadgroup", "thread_index_in_simdgroup")
QMM = (
    GROUP_POSITION,
    "thread_index_in_threadgroup",
    "simdgroup_index_in_threadgroup",
    "thread_index_in_simdgroup",
)
SDPA = (GROUP_POSITION, "threadgroups_per_grid", *QMV[1:])
IN_KERNEL = {"float32": "float", "float16": "half", "bfloat16": "bfloat"}


def mlx_source(*files: str) -> str:
    """The text of some of MLX's kernel files with what they include, each once."""
    seen: set[str] = set()
    return _PER_SPACE.sub("", "\n".join(_expanded(_BASE + file, seen) for file in files))


def _expanded(path: str, seen: set[str]) -> str:
    if path in seen or path.removeprefix(_BASE) in _IN_PREAMBLE:
        return ""
    seen.add(path)
    text = (MLX_HEADERS / path).read_text().replace("#pragma once\n", "\n")
    return _INCLUDE.sub(lambda found: _expanded(found[1], seen), text)


def ints(*values: int) -> Argument:
    return Argument("ints", np.array(values, np.int32))


def longs(*values: int) -> Argument:
    return Argument("longs", np.array(values, np.uint64))


def given(value: Any) -> Argument:
    return Argument("input", to_numpy(value))


def output(shape: tuple[int, ...], dtype: str) -> Argument:
    return Argument("output", np.empty(shape, numpy_dtype(dtype)), True, False)


# Batch arguments of the quantised kernels, for no batch.
NO_BATCH = (
    *(ints(0), ints(0, 0, 0), longs(0, 0, 0), ints(0)),
    *(ints(0, 0, 0), longs(0, 0, 0), longs(0, 0, 0)),
)


def run_mlx(
    source: str,
    instance: str,
    arguments: Sequence[Argument],
    groups: tuple[int, int, int],
    threads: tuple[int, int, int],
    builtins: Sequence[str],
    checked: bool,
) -> Outcome:
    """Run one instance; its output is among the arguments."""
    module = build(source, instance, "checked" if checked else "fast")
    grid = (groups[0] * threads[0], groups[1] * threads[1], groups[2] * threads[2])
    everything: list[Argument | int] = [*arguments, *(BUILTIN_INDEX[name] for name in builtins)]
    return launch(module, everything, grid, threads, Mode(checked=checked))


def random_normal(shape: tuple[int, ...], dtype: str, seed: int) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(getattr(mx, dtype))


def on_cpu(x: mx.array, *weight: mx.array, **how: Any) -> Array:
    """MLX's quantised product on the CPU, in float32: in half its sums are less exact."""
    w, *scales = weight
    halves = (mx.float16, mx.bfloat16)
    wide = [s.astype(mx.float32) if s.dtype in halves else s for s in scales]
    product: Any = mx.quantized_matmul
    return np.array(product(x.astype(mx.float32), w, *wide, stream=mx.cpu, **how))
