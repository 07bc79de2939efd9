"""Traffic and work are counted as they are executed."""

import mlx.core as mx
import numpy as np
import pytest

from tests.metal_host.count_text import kind_of
from tests.metal_host.host_kernel import Result, metal_kernel
from tests.metal_host.launch import Mode

I = "uint i = thread_position_in_grid.x; "  # noqa: E741
X = np.ones(64, np.float32)


def run(source: str, *, counted: bool = False) -> Result:
    mode = Mode() if counted else Mode(checked=True, record=True)
    kernel = metal_kernel("count", ["x"], ["y"], I + source, mode=mode, counted=counted)
    return kernel.run(
        inputs=[X],
        output_shapes=[(64,)],
        output_dtypes=[mx.float32],
        grid=(64, 1, 1),
        threadgroup=(64, 1, 1),
    )


READS = {
    "every byte once": ("y[i] = x[i];", 256),
    "one number for a whole SIMD-group": ("y[i] = x[0];", 2 * 4),
    "half of the numbers, by two lanes each": ("y[i] = x[i / 2];", 128),
    # two loads of the same bytes: there is no cache
    "every byte twice": (
        "float v = x[i]; threadgroup_barrier(mem_flags::mem_device); y[i] = v + x[63 - i];",
        512,
    ),
    "one number in every turn of a loop": (
        "float v = 0; for (uint k = 0; k < 8; k++) { v += x[k]; simdgroup_barrier("
        "mem_flags::mem_none); } y[i] = v;",
        2 * 8 * 4,
    ),
    "a branch of some lanes": ("y[i] = 0; if (i < 5) y[i] = x[i];", 20),
    "nothing": ("y[i] = 1;", 0),
}


@pytest.mark.parametrize("case", READS)
def test_bytes_that_are_fetched(case: str) -> None:
    source, expected = READS[case]
    result = run(source)
    assert result.findings == []
    assert result.fetched()["x"] == expected


def test_operations_follow_the_work() -> None:
    """Twice the work is twice the count, to the operation, and kinds are told apart."""
    source = "float v = x[i]; for (uint k = 0; k < {n}u; k++) v = fma(v, v, 0.5f); y[i] = v;"
    once, twice = (run(source.replace("{n}", n), counted=True) for n in ("10", "20"))
    assert twice.outcome.operations["float"] == 2 * once.outcome.operations["float"] == 64 * 20
    assert twice.outcome.operations["integer"] == once.outcome.operations["integer"]


def test_a_counted_build_computes_the_same() -> None:
    source = "y[i] = exp(x[i]) * float(i);"
    assert np.array_equal(run(source, counted=True).outputs[0], run(source).outputs[0])


KINDS = {
    "  %3 = fmul float %1, %2": ("float", 1),
    "  %3 = fadd <4 x float> %1, %2": ("float", 4),
    "  %3 = tail call float @llvm.fma.f32(float %1, float %2, float %0)": ("float", 1),
    "  %3 = and i32 %1, 15": ("integer", 1),
    "  %3 = uitofp <4 x i8> %1 to <4 x float>": ("convert", 4),
    "  %3 = load <4 x half>, ptr %1, align 8": ("load", 1),
    "  store float %3, ptr %1, align 4": ("store", 1),
    "  call void @mslh_tg_barrier(i32 1, i32 2, i32 3)": ("call", 1),
    "  %3 = fpext half %1 to float": None,
    "  %3 = zext i8 %1 to i32": None,
    "  %3 = phi i32 [ 0, %1 ], [ %4, %2 ]": None,
    "  br label %5": None,
    "    #dbg_value(i32 %3, !1, !DIExpression(), !2)": None,
}


@pytest.mark.parametrize("line", KINDS)
def test_kinds_of_operations(line: str) -> None:
    assert kind_of(line) == KINDS[line]
