"""MLX's kernels, written for real GPUs, give MLX's CPU results: the emulator is right."""

import re
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from tests.metal_host.dtypes import Array
from tests.metal_host.mlx_kernels import (
    IN_KERNEL,
    NO_BATCH,
    QMM,
    QMV,
    SDPA,
    given,
    ints,
    longs,
    mlx_source,
    on_cpu,
    output,
    random_normal,
    run_mlx,
)

AFFINE = ("quantized_utils.h", "steel/gemm/gemm.h", "quantized.h")
FLOATING = ("quantized_utils.h", "steel/gemm/gemm.h", "fp_quantized.h")
BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
# The matrix kernels round the dequantised weight to the type of x.
TOLERANCE = {"float32": (1e-5, 1e-4), "float16": (2e-3, 2e-2), "bfloat16": (1.6e-2, 1.2e-1)}


def is_close(got: Array, want: Array, dtype: str) -> bool:
    relative, absolute = TOLERANCE[dtype]
    return bool(np.allclose(got.astype(np.float32), want, rtol=relative, atol=absolute))


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize(
    ("bits", "dtype"),
    [
        (4, "float16"),
        pytest.param(2, "float32", marks=pytest.mark.slow),
        pytest.param(3, "bfloat16", marks=pytest.mark.slow),
        pytest.param(8, "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_affine_matrix_times_vector(bits: int, dtype: str, checked: bool) -> None:
    m, n, k = 2, 24, 1024 if bits == 2 else 512
    x = random_normal((m, k), dtype, 1)
    w = mx.quantize(random_normal((n, k), dtype, 2), group_size=64, bits=bits)
    y = output((m, n), dtype)
    sizes = (ints(k), ints(n), *NO_BATCH, NO_BATCH[-1])
    arguments = [*map(given, w), given(x), y, *sizes]
    instance = f"affine_qmv_fast<{IN_KERNEL[dtype]}, 64, {bits}, false>"
    groups = (m, n // 8, 1)
    outcome = run_mlx(mlx_source(*AFFINE), instance, arguments, groups, (32, 2, 1), QMV, checked)
    assert outcome.findings == []
    assert is_close(y.array, on_cpu(x, *w, group_size=64, bits=bits), dtype)


@pytest.mark.slow
@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("m", [5, 40])
def test_affine_matrix_times_matrix(m: int, checked: bool) -> None:
    n, k = 64, 128
    x = random_normal((m, k), "float16", 1)
    w = mx.quantize(random_normal((n, k), "float16", 2), group_size=64, bits=4)
    y = output((m, n), "float16")
    sizes = (ints(k), ints(n), ints(m), *NO_BATCH, NO_BATCH[-1])
    arguments = [*map(given, w), given(x), y, *sizes]
    instance, groups = "affine_qmm_t<half, 64, 4, true, false>", (n // 32, -(-m // 32), 1)
    outcome = run_mlx(mlx_source(*AFFINE), instance, arguments, groups, (32, 2, 2), QMM, checked)
    assert outcome.findings == []
    assert is_close(y.array, on_cpu(x, *w, group_size=64, bits=4), "float16")


def nvfp4_product(source: str, checked: bool) -> tuple[Any, Array, Array]:
    """(outcome, result, what MLX has) of MLX's tiled product of 33 rows with an nvfp4 matrix."""
    m, n, k = 33, 64, 128
    x = random_normal((m, k), "float16", 1)
    w, scales, *_ = mx.quantize(random_normal((n, k), "float32", 2), mode="nvfp4")
    y, one = output((m, n), "float16"), given(np.ones(1, np.float32))
    sizes = (ints(k), ints(n), ints(m), *NO_BATCH)
    arguments = [given(w), given(scales), one, given(x), y, *sizes]
    instance, groups = "fp_qmm_t<half, 16, 4, true, false>", (n // 32, -(-m // 32), 1)
    outcome = run_mlx(source, instance, arguments, groups, (32, 2, 2), QMM, checked)
    return outcome, y.array, on_cpu(x, w, scales, mode="nvfp4")


@pytest.mark.parametrize("checked", [False, True])
def test_nvfp4_matrix_times_matrix(checked: bool) -> None:
    outcome, got, want = nvfp4_product(mlx_source(*FLOATING), checked)
    assert outcome.findings == []
    assert is_close(got, want, "float16")


@pytest.mark.parametrize(
    ("nth", "is_needed"),
    [
        (2, True),
        pytest.param(3, True, marks=pytest.mark.slow),
        pytest.param(8, True, marks=pytest.mark.slow),
        pytest.param(9, True, marks=pytest.mark.slow),
        (12, False),
    ],
)
def test_a_barrier_taken_out_of_mlxs_kernel(nth: int, is_needed: bool) -> None:
    """The product has 13 barriers; 33 rows reach five, of which the last one guards registers."""
    source = mlx_source(*FLOATING)
    start = source.index("METAL_FUNC void fp_qmm_t_impl")
    end = source.index("METAL_FUNC void fp_qmm_n_impl")
    barriers = [start + m.start() for m in re.finditer(re.escape(BARRIER), source[start:end])]
    assert len(barriers) == 13
    at = barriers[nth]
    without = source[:at] + " " * len(BARRIER) + source[at + len(BARRIER) :]
    outcome, _, _ = nvfp4_product(without, checked=True)
    assert any("data race" in finding for finding in outcome.findings) == is_needed
    assert bool(outcome.findings) == is_needed


@pytest.mark.parametrize("checked", [False, True])
def test_attention_of_one_row(checked: bool) -> None:
    """1024 threads: all SIMD-groups of a threadgroup talk through its memory."""
    heads, kv_heads, length, size = 4, 2, 77, 64
    q = random_normal((1, heads, 1, size), "float16", 1)
    k, v = (random_normal((1, kv_heads, length, size), "float16", s) for s in (2, 3))
    wide = [t.astype(mx.float32) for t in (q, k, v)]
    want = mx.fast.scaled_dot_product_attention(*wide, scale=size**-0.5, stream=mx.cpu)
    y, none = output((heads, size), "float16"), given(np.zeros(1, np.float16))
    strides = (longs(length * size), longs(size), longs(length * size), longs(size))
    scale, no_mask = given(np.array([size**-0.5], np.float32)), given(np.zeros(1, bool))
    arguments = [given(q), given(k), given(v), y, ints(heads // kv_heads), ints(length), *strides]
    arguments += [scale, no_mask, none, ints(0), ints(0), ints(0), none, ints(heads)]
    groups, threads = (heads, 1, 1), (1024, 1, 1)
    source = mlx_source("sdpa_vector.h")
    outcome = run_mlx(source, "sdpa_vector<half, 64>", arguments, groups, threads, SDPA, checked)
    assert outcome.findings == []
    assert outcome.group_bytes == 4 * (32 * 32 + 32 + 32)
    assert is_close(y.array, np.array(want).reshape(heads, size), "float16")
