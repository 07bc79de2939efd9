"""Faults that Metal's compiler refuses are refused here, without running the kernel."""

import re

import numpy as np
import pytest

from tests.metal_host.bodies import EXAMPLES
from tests.metal_host.static_check import check_static, lint
from tests.metal_host.text import Kernel, generate

ONE = "o[0] = f(a0);"
DEVICE = "inline float f(const device float* p) { return p[0]; }\n"
# (header, body, what is said)
REFUSED = {
    "device to a threadgroup parameter": (
        "inline float f(threadgroup float* p) { return p[0]; }\n",
        ONE,
        "cannot pass pointer to address space|no matching function",
    ),
    "threadgroup to a device parameter": (
        DEVICE,
        "threadgroup float s[8]; s[0] = 1; o[0] = f(s);",
        "no matching function",
    ),
    "device to an unqualified parameter": (
        "inline float f(const float* p) { return p[0]; }\n",
        ONE,
        "no matching function",
    ),
    "a small input is constant, not device": (DEVICE, "o[0] = f(a1);", "no matching function"),
    "a cast from device to threadgroup": (
        "",
        "threadgroup const float* p = (threadgroup const float*)a0; o[0] = p[0];",
        "cast between address spaces",
    ),
    "a write to an input": (
        "",
        "a0[0] = 1; o[0] = 1;",
        "read-only|const-qualified|cannot assign",
    ),
    "the type of simdgroup_load": (
        "",
        "simdgroup_matrix<half, 8, 8> m; simdgroup_load(m, a0, 8); o[0] = 1;",
        "element type of the pointer",
    ),
    "a table outside of constant memory": (
        "const float LUT[4] = {1, 2, 3, 4};\n",
        "o[thread_position_in_grid.x] = LUT[thread_position_in_grid.x & 3];",
        "must be `constant`",
    ),
    "a static variable": ("", "static float s = 0; s += 1; o[0] = s;", "must be `constant`"),
    "float to bfloat without a cast": (
        "",
        "bfloat b = a0[0]; o[0] = b;",
        "implicit conversion.*__bf16",
    ),
    "a name of MLX's preamble": (
        "inline float log1p(float x) { return x; }\n",
        "o[0] = log1p(a0[0]);",
        "redefinition of 'log1p'",
    ),
    "min(int, uint)": ("", "int i = 1; uint j = 2; o[0] = min(i, j);", "ambiguous"),
    "simd_sum of 64 bits": (
        "",
        "long v = 1; o[0] = simd_sum(v);",
        "no such SIMD-group function",
    ),
}


def text_of(header: str, body: str) -> str:
    inputs = [np.zeros(64, np.float32), np.zeros(4, np.float32)]
    return generate(Kernel("s", ("a0", "a1"), ("o",), body, header), inputs, ["float32"], []).text


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    header, body, said = REFUSED[case]
    assert any(re.search(said, finding) for finding in check_static(text_of(header, body)))


def test_a_correct_kernel_passes() -> None:
    header = (EXAMPLES / "rms_norm.metal").read_text()
    body = (
        "threadgroup float p[32]; threadgroup float i; rms_norm<float>(a0, a0, o, 64, p, &i, "
        "thread_index_in_threadgroup, 32, thread_index_in_simdgroup, "
        "simdgroup_index_in_threadgroup, simdgroups_per_threadgroup);"
    )
    assert check_static(text_of(header, body)) == []
    assert lint(header) == []


def test_spellings_that_metal_does_not_have() -> None:
    text = "double x; // double\nint y;\nstd::min(1, 2);\nauto f = [&](int i) { return i; };\n"
    assert lint(text) == [
        "kernel.metal:1: Metal has no double: double",
        "kernel.metal:3: Metal has metal::, not std::: std::",
        "kernel.metal:4: Metal before 4.0 has no lambdas: [&](int i) {",
    ]
