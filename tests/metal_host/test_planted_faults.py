"""Faults planted in kernels are found, in whatever order the threads run."""

import mlx.core as mx
import numpy as np
import pytest

from tests.metal_host.bodies import CHECKED, rms_norm, rms_norm_in_float64, run_body
from tests.metal_host.host_kernel import FAST, Result
from tests.metal_host.launch import Mode

random = np.random.default_rng(0)
X, W = random.standard_normal((3, 200), np.float32), random.standard_normal(200, np.float32)
ZEROS = np.zeros(64, np.float32)
BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
I = "uint i = thread_index_in_threadgroup; "  # noqa: E741


def found(result: Result, *words: str) -> bool:
    return any(all(word in finding for word in words) for finding in result.findings)


@pytest.mark.parametrize("checked", [False, True])
def test_the_correct_kernel_has_no_finding(checked: bool) -> None:
    """RMS norm over three SIMD-groups with two barriers is right, and nothing is said of it."""
    result = rms_norm(X, W, Mode(checked=checked))
    assert result.findings == []
    np.testing.assert_allclose(result.outputs[0], rms_norm_in_float64(X, W), rtol=2e-6)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("which", "line"), [("first", "partial[lane]"), ("second", "*inverse")])
def test_a_missing_barrier_is_a_race(which: str, line: str, seed: int) -> None:
    """Each of the two barriers is needed, and the schedule does not matter."""
    result = rms_norm(X, W, Mode(checked=True, seed=seed), drop=f"{BARRIER}  // {which}")
    assert found(result, "data race", "threadgroup memory", line)


def test_a_barrier_for_device_memory_does_not_order_threadgroup_memory() -> None:
    result = rms_norm(X, W, CHECKED, flag="mem_flags::mem_device")
    assert found(result, "data race", "threadgroup memory")


def test_results_show_a_missing_barrier_in_some_schedules_only() -> None:
    """Why races are looked for by order, not by result."""
    drop = f"{BARRIER}  // first"
    outputs = [rms_norm(X, W, Mode(seed=s), drop=drop).outputs[0] for s in range(12)]
    right = rms_norm_in_float64(X, W)
    assert not all(np.allclose(output, right, rtol=1e-5) for output in outputs)


def test_a_simdgroup_function_orders_no_memory() -> None:
    """A race detector with one system thread per lane takes the meeting for an ordering."""
    start = "threadgroup float s[32]; uint i = thread_index_in_simdgroup; s[i] = 1.0; "
    racing = run_body(start + "float z = simd_sum(0.0f); o[i] = s[i ^ 1] + z;", threads=32, out=32)
    assert found(racing, "data race", "threadgroup memory `s`")
    ordered = start + "simdgroup_barrier(mem_flags::mem_threadgroup); o[i] = s[i ^ 1];"
    assert run_body(ordered, threads=32, out=32).findings == []


OUT_OF_BOUNDS = {
    "read behind": (
        I + "o[i] = a0[i + 1];",
        ("read", "`a0` byte 256 (4 bytes) of 256", "a0[i + 1]"),
    ),
    "read before": ("int i = thread_position_in_grid.x; o[i] = a0[i - 1];", ("read", "byte -4")),
    "write behind": (I + "o[i] = a0[i]; if (i == 5) o[i + 70] = 2;", ("write", "buffer `o`")),
    "threadgroup array": (
        f"threadgroup float s[64]; {I}s[i + 1] = a0[i]; {BARRIER} o[i] = s[i + 1];",
        ("write", "s[i + 1] = a0[i]"),
    ),
    # through a pointer, so that no bound is in sight of the compiler
    "into the next threadgroup array": (
        f"threadgroup float s[64]; threadgroup float t[64]; {I}"
        f"threadgroup float* p = a0[0] > 0 ? t : s; s[i] = 0; t[i] = 0;\n{BARRIER}\n"
        "float v = p[i + 1];\no[i] = v;",
        ("read", "threadgroup memory `s` byte 256", "float v = p[i + 1]"),
    ),
}


@pytest.mark.parametrize("case", OUT_OF_BOUNDS)
def test_out_of_bounds(case: str) -> None:
    source, words = OUT_OF_BOUNDS[case]
    result = run_body(source, [ZEROS])
    assert any(f.startswith("out-of-bounds") for f in result.findings)
    assert found(result, *words)


def test_out_of_bounds_of_a_threads_own_array() -> None:
    result = run_body("float t[4] = {1, 2, 3, 4}; " + I + "o[i] = t[i % 5];")
    assert found(result, "undefined behaviour", "out_of_bounds")


def test_the_unchecked_build_faults_far_out_of_bounds() -> None:
    result = run_body(I + "o[i] = a0[i + 64];", [ZEROS], mode=FAST)
    assert found(result, "memory fault", "`a0`")


def test_uninitialised_threadgroup_memory() -> None:
    source = f"threadgroup float s[64]; {I}if (i != 7) s[i] = 1.0;\n{BARRIER}\no[i] = s[i];"
    result = run_body(source)
    assert found(result, "read of uninitialised memory", "thread 7", "o[i] = s[i]")


def test_uninitialised_output() -> None:
    """Outputs have no contents unless init_value gives them some."""
    assert found(run_body(I + "o[i] += 1;"), "read of uninitialised memory", "buffer `o`")
    assert run_body(I + "o[i] += 1;", init_value=0).findings == []


def test_an_element_that_nobody_writes_is_nan() -> None:
    (output,) = run_body(I + "if (i != 9) o[i] = 1;", mode=FAST).outputs
    assert np.flatnonzero(np.isnan(output)).tolist() == [9]


def test_two_threadgroups_that_write_one_element() -> None:
    """Nothing orders the threadgroups of a dispatch; atomics are allowed to meet."""
    assert found(run_body(I + "o[i] = 1;", threads=128, group=64), "data race", "with threadgroup")
    atomic = I + "atomic_fetch_add_explicit(&o[i % 4], 1u, memory_order_relaxed);"
    result = run_body(
        atomic, threads=256, group=64, out=4, dtype=mx.uint32, atomic=True, init_value=0
    )
    assert result.findings == []
    assert result.outputs[0].tolist() == [64] * 4


def test_a_lost_update() -> None:
    assert found(run_body("o[0] = o[0] + 1;", out=1, init_value=0), "data race")


def test_a_barrier_that_some_threads_skip() -> None:
    skipped = run_body(f"{I}if (i < 40) {BARRIER} o[i] = 1;")
    assert found(skipped, "barrier after some threads returned")
    two = f"{I}if (i < 32) {{ {BARRIER} }} else {{\n {BARRIER} }} o[i] = 1;"
    assert found(run_body(two), "divergence")


def test_a_simdgroup_function_in_a_branch() -> None:
    source = I + f"float v = 0; if (i % 32 < 16) v = simd_sum(1.0f); {BARRIER} o[i] = v;"
    assert found(run_body(source), "divergence")
    lenient = run_body(source, mode=Mode(checked=True, strict=False))
    assert (lenient.outputs[0].reshape(2, 32)[:, :16] == 16).all()


def test_a_value_from_a_lane_that_returned_is_nan() -> None:
    source = I + "o[i] = 0; if (i >= 40) return; o[i] = simd_shuffle_xor(1.0f, 16);"
    (output,) = run_body(source, mode=FAST).outputs
    assert np.isnan(output[32:40]).all()
    assert (output[:32] == 1).all()


def test_a_misaligned_vector() -> None:
    result = run_body(I + "o[i] = ((const device float4*)(a0 + 1))->x;", [ZEROS])
    assert found(result, "misaligned access", "16 bytes")


def test_undefined_arithmetic() -> None:
    assert found(run_body(I + "o[i] = 1 << (i + 1);"), "shift_out_of_bounds")
    assert found(run_body("int i = thread_index_in_threadgroup; o[i] = 5 / i;"), "divrem_overflow")


def test_too_much_threadgroup_memory() -> None:
    result = run_body("threadgroup float s[8200]; " + I + "s[i] = 1; o[i] = s[i];")
    assert found(result, "threadgroup memory: 32800 bytes, the limit is 32768")


def test_threadgroups_at_the_edge_are_smaller() -> None:
    source = (
        "o[thread_position_in_grid.x] = threads_per_threadgroup.x * 1000"
        " + dispatch_threads_per_threadgroup.x;"
    )
    result = run_body(source, threads=100, group=64, out=100)
    assert result.findings == []
    assert (result.outputs[0] == np.repeat([64064, 36064], [64, 36])).all()
