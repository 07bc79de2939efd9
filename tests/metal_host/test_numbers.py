"""Numbers come out as a GPU's: half and bfloat round after each operation, literals are float."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest

from tests.metal_host.bodies import CHECKED, run_body
from tests.metal_host.dtypes import Array
from tests.metal_host.host_kernel import FAST, metal_kernel

random = np.random.default_rng(3)
HALVES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
N = 20000
AT = "uint i = thread_position_in_grid.x; "


def run(source: str, inputs: list[Any], dtype: Any, n: int) -> Array:
    """The output of n threads, each of which writes o[i]."""
    result = run_body(AT + source, inputs, threads=n, group=256, out=n, dtype=dtype, mode=FAST)
    assert result.findings == []
    return result.outputs[0]


def random_bits(dtype: np.dtype[Any]) -> Array:
    """Finite numbers of every size."""
    values: Array = random.integers(0, 1 << 16, N).astype(np.uint16).view(dtype)
    finite = np.isfinite(values.astype(np.float32))
    return np.where(finite, values, np.ones((), dtype)).astype(dtype)


def same_bits(a: Array, b: Array) -> bool:
    nan = np.isnan(a.astype(np.float32)) & np.isnan(b.astype(np.float32))
    return bool(((a.view(np.uint16) == b.view(np.uint16)) | nan).all())


@pytest.mark.parametrize("name", HALVES)
def test_every_operation_rounds(name: str) -> None:
    """+, -, *, / and two of them in one expression, bit for bit."""
    a, b = random_bits(HALVES[name]), random_bits(HALVES[name])
    operations = ["a0[j] + a1[j]", "a0[j] - a1[j]", "a0[j] * a1[j]", "a0[j] / a1[j]"]
    operations.append("a0[j] * a1[j] + a0[j]")
    cases = "".join(f"if (k == {k}) o[i] = {e}; " for k, e in enumerate(operations))
    source = f"uint k = i / {N}u, j = i % {N}u; " + cases
    got = run(source, [a, b], getattr(mx, name), len(operations) * N)
    with np.errstate(all="ignore"):
        want = np.concatenate([a + b, a - b, a * b, a / b, (a * b) + a])
    assert same_bits(got, want)


@pytest.mark.parametrize("name", HALVES)
def test_float_rounds_to_nearest_even(name: str) -> None:
    bits = random.integers(0, 1 << 32, N, dtype=np.uint64).astype(np.uint32).view(np.float32)
    values = np.where(np.isnan(bits), 1, bits).astype(np.float32)
    with np.errstate(all="ignore"):
        want = values.astype(HALVES[name])
    assert same_bits(run("o[i] = T(a0[i]);", [values], getattr(mx, name), N), want)


def test_literals_are_float() -> None:
    a = random.standard_normal(1000, np.float32)
    got = run("o[i] = a0[i] * 1.1 + a0[i];", [a], mx.float32, a.size)
    assert (got == (a * np.float32(1.1)) + a).all()


def test_vectors() -> None:
    """Construction, swizzles, conversion and functions of vectors."""
    a = random.standard_normal(64, np.float32)
    source = """
    float4 v = float4(a0[0], a0[1], float2(a0[2], a0[3]));
    half4 h = half4(v);
    int4 k = int4(v * 10.0f);
    uint4 u = uint4(1, 2, 3, 4) << 1u;
    float3 c = v.wzy; c.xy = v.yx;
    vec<float, 2> w = vec<float, 2>(int2(7, 8));
    T r[12] = {v.x, v.w, float(h.z), float(k.x), float(u.w), c.x, c.z, w.y,
               clamp(v, 0.0f, 1.0f).x, as_type<float4>(as_type<uint4>(v)).y,
               select(v, -v, v < 0.0f).z, fma(v, v, v).x};
    o[i] = r[i];
    """
    v = a[:4]
    want = [v[0], v[3], np.float16(v[2]), int(v[0] * 10), 8, v[1], v[1], 8]
    want += [np.clip(v[0], 0, 1), v[1], abs(v[2]), v[0] * v[0] + v[0]]
    got = run(source, [a], mx.float32, 12)
    np.testing.assert_allclose(got, np.array(want, np.float32), rtol=1e-6)


LANE = np.arange(32)
SIMD: dict[str, Callable[[Array], Array]] = {
    "simd_max(v)": lambda g: g.max(1, keepdims=True),
    "simd_min(v)": lambda g: g.min(1, keepdims=True),
    "simd_broadcast(v, 5)": lambda g: g[:, 5:6],
    "simd_shuffle(v, ushort(31 - i % 32))": lambda g: g[:, ::-1],
    "simd_shuffle_xor(v, 3)": lambda g: g[:, LANE ^ 3],
    "simd_shuffle_down(v, 4)": lambda g: np.concatenate([g[:, 4:], g[:, 28:]], 1),
    "simd_shuffle_up(v, 4)": lambda g: np.concatenate([g[:, :4], g[:, :28]], 1),
    "simd_shuffle_rotate_down(v, 4)": lambda g: np.roll(g, -4, 1),
    "simd_shuffle_and_fill_down(v, v * 0, 4)": lambda g: np.concatenate(
        [g[:, 4:], 0 * g[:, :4]], 1
    ),
    "(float)simd_ballot(v > 0).v": lambda g: ((g > 0) << LANE).sum(1, keepdims=True),
    "simd_sum(v)": lambda g: g.sum(1, keepdims=True),
    "simd_prefix_inclusive_sum(v)": lambda g: np.cumsum(g, 1),
    "quad_sum(v)": lambda g: g.reshape(2, 8, 4).sum(2).repeat(4, 1),
}


def test_simdgroup_functions() -> None:
    """All at once: each a row of the output."""
    a = random.standard_normal(64, np.float32)
    rows = "".join(f"o[{k * 64}u + i] = {call}; " for k, call in enumerate(SIMD))
    result = run_body(AT + "float v = a0[i]; " + rows, [a], out=64 * len(SIMD), mode=FAST)
    for got, want in zip(result.outputs[0].reshape(-1, 2, 32), SIMD.values(), strict=True):
        right = np.broadcast_to(want(a.reshape(2, 32)), (2, 32))
        np.testing.assert_allclose(got, right.astype(np.float32), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("transposed", ["false", "true"])
@pytest.mark.parametrize("name", ["float32", "float16"])
def test_simdgroup_matrix(name: str, transposed: str) -> None:
    a, b = (random.standard_normal((8, 8)).astype(name) for _ in range(2))
    source = (
        "simdgroup_matrix<T, 8, 8> x, y; simdgroup_matrix<float, 8, 8> z(1.0f);"
        f"simdgroup_load(x, a, 8); simdgroup_load(y, b, 8, ulong2(0, 0), {transposed});"
        "simdgroup_multiply_accumulate(z, x, y, z); simdgroup_store(z, o, 8);"
    )
    kernel = metal_kernel("m", ["a", "b"], ["o"], source, mode=CHECKED)
    result = kernel.run(
        inputs=[a, b],
        output_shapes=[(8, 8)],
        output_dtypes=[mx.float32],
        grid=(32, 1, 1),
        threadgroup=(32, 1, 1),
        template=[("T", getattr(mx, name))],
    )
    assert result.findings == []
    second = b.T if transposed == "true" else b
    want = np.eye(8) + a.astype(np.float64) @ second.astype(np.float64)
    np.testing.assert_allclose(result.outputs[0], want, rtol=1e-4, atol=1e-5)
