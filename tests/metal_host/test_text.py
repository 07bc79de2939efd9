"""Our text of a kernel is MLX's, which prints it on any machine while a function is exported."""

import os
import re
import tempfile
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from tests.metal_host.text import BUILTINS, Kernel, generate

F32 = np.zeros(64, np.float32)
CASES: dict[str, tuple[Kernel, list[Any], list[tuple[str, Any]], list[str]]] = {
    "plain": (
        Kernel("a", ("x",), ("o",), "uint i = thread_position_in_grid.x; o[i] = x[i];"),
        [F32],
        [],
        ["float32"],
    ),
    "template": (
        Kernel("b", ("x",), ("o",), "o[thread_index_in_threadgroup] = T(N);", "// header\n"),
        [np.zeros((2, 64), np.float16)],
        [("T", mx.bfloat16), ("N", 3), ("B", True), ("C", False)],
        ["bfloat16"],
    ),
    "shapes": (
        Kernel(
            "c",
            ("x", "y", "s"),
            ("o", "p"),
            "o[0] = x_shape[0] + x_strides[1] + y_ndim + s + s_shape;"
            "p[thread_position_in_grid.x] = 1; simd_sum(threads_per_simdgroup);",
        ),
        [np.zeros((4, 8), np.int32), np.zeros(7, np.uint8), np.array(3, np.int64)],
        [("K", -4)],
        ["int32", "uint64"],
    ),
    "atomic": (
        Kernel(
            "d",
            (),
            ("o",),
            "atomic_fetch_add_explicit(&o[thread_position_in_grid.x % 4], 1u, "
            "memory_order_relaxed);",
            atomic_outputs=True,
        ),
        [],
        [],
        ["uint32"],
    ),
    "no built-in": (
        Kernel("e", ("x",), ("o", "p"), "o[0] = x[0] + x_shape[0]; p[0] = 1;"),
        [F32],
        [],
        ["float32", "float32"],
    ),
    "all built-ins": (
        Kernel("f", ("x",), ("o",), "\n".join(BUILTINS)),
        [np.zeros(64, bool)],
        [("T", mx.uint32)],
        ["bool"],
    ),
}


def printed(kernel: Kernel, inputs: list[Any], template: list[Any], dtypes: list[str]) -> str:
    """What MLX generates for the same call."""
    made: Any = mx.fast.metal_kernel(
        name=kernel.name,
        input_names=list(kernel.input_names),
        output_names=list(kernel.output_names),
        source=kernel.source,
        header=kernel.header,
        atomic_outputs=kernel.atomic_outputs,
    )
    names = {"bool": "bool_"}
    rest = {
        "output_shapes": [(64,)] * len(dtypes),
        "output_dtypes": [getattr(mx, names.get(d, d)) for d in dtypes],
        "grid": (64, 1, 1),
        "threadgroup": (32, 1, 1),
        "template": template or None,
        "verbose": True,
    }
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as file:
        out = os.dup(1)
        os.dup2(file.fileno(), 1)  # MLX prints from C++
        try:
            path = str(Path(folder, "kernel.mlxfn"))
            arrays = [mx.array(a) for a in inputs]
            mx.export_function(path, lambda *a: made(inputs=list(a), **rest), *arrays)
        finally:
            os.dup2(out, 1)
            os.close(out)
        file.seek(0)
        found = re.search(r"```\n(.*)\n```\n$", file.read().decode(), re.S)
    assert found
    return found[1]


@pytest.mark.parametrize("case", CASES)
def test_the_text_is_what_mlx_generates(case: str) -> None:
    """Character for character, for every kind of parameter."""
    kernel, inputs, template, dtypes = CASES[case]
    ours = generate(kernel, inputs, dtypes, template)
    assert ours.text == printed(kernel, inputs, template, dtypes)
