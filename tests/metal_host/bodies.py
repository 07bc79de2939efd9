"""Short kernels for tests of the emulator: inputs a0, a1, .. and one output o."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from tests.metal_host.dtypes import Array
from tests.metal_host.host_kernel import FAST, Result, metal_kernel
from tests.metal_host.launch import Mode

CHECKED = Mode(checked=True)
EXAMPLES = Path(__file__).parent / "examples"


def run_body(
    source: str,
    inputs: Sequence[Any] = (),
    *,
    header: str = "",
    threads: int = 64,
    group: int | None = None,
    out: int = 64,
    dtype: Any = mx.float32,
    mode: Mode = CHECKED,
    atomic: bool = False,
    init_value: float | None = None,
) -> Result:
    """Run `source` in `threads` threads, in threadgroups of `group` (all in one, if None)."""
    names = [f"a{i}" for i in range(len(inputs))]
    kernel = metal_kernel("body", names, ["o"], source, header, atomic_outputs=atomic, mode=mode)
    return kernel.run(
        inputs=inputs,
        output_shapes=[(out,)],
        output_dtypes=[dtype],
        grid=(threads, 1, 1),
        threadgroup=(group or threads, 1, 1),
        template=[("T", dtype)],
        init_value=init_value,
    )


def rms_norm(x: Array, w: Array, mode: Mode = FAST, *, drop: str = "", flag: str = "") -> Result:
    """The example kernel over rows of x, with a piece of its text dropped or its barriers' flag."""
    header = (EXAMPLES / "rms_norm.metal").read_text()
    assert drop in header
    header = header.replace(drop, "") if drop else header
    header = header.replace("mem_flags::mem_threadgroup", flag or "mem_flags::mem_threadgroup")
    source = (
        "threadgroup float partial[32]; threadgroup float inverse;\n"
        "uint row = threadgroup_position_in_grid.x; int D = x_shape[1];\n"
        "rms_norm<T>(x + row * D, w, out + row * D, D, partial, &inverse,"
        " thread_index_in_threadgroup, threads_per_threadgroup.x, thread_index_in_simdgroup,"
        " simdgroup_index_in_threadgroup, simdgroups_per_threadgroup);"
    )
    kernel = metal_kernel("rms_norm", ["x", "w"], ["out"], source, header, mode=mode)
    return kernel.run(
        inputs=[x, w],
        output_shapes=[x.shape],
        output_dtypes=[x.dtype],
        grid=(x.shape[0] * 96, 1, 1),
        threadgroup=(96, 1, 1),
        template=[("T", mx.float32)],
    )


def rms_norm_in_float64(x: Array, w: Array) -> Array:
    wide = x.astype(np.float64)
    norm: Array = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5) * w
    return norm
