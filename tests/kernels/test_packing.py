"""Planes that do not fit each other are refused, and multipliers reach every row."""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest

from mtplx.errors import CheckpointError
from mtplx.kernels.packing import (
    PackedWeight,
    affine_weight,
    fp8_weight,
    gguf_weight,
    mxfp4_weight,
    nvfp4_weight,
    powers_of_two,
)
from mtplx.kernels.product import multiply
from mtplx.kernels.source import Kernel


def zeros(*shape: int) -> mx.array:
    return mx.zeros(shape, mx.uint8)


def test_shapes_come_from_the_bytes() -> None:
    """[N, K], or [E, N, K] for a stack of experts."""
    codes, scales = mx.zeros((6, 8), mx.uint32), mx.zeros((6, 1), mx.float16)
    packed: list[PackedWeight] = [
        gguf_weight("Q6_K", zeros(6, 210), 256),
        gguf_weight("Q8_0", zeros(4, 6, 34), 32),
        nvfp4_weight(zeros(6, 64), zeros(6, 8), mx.array(1.0)),
        mxfp4_weight(zeros(4, 6, 64), zeros(4, 6, 4)),
        fp8_weight(zeros(6, 64), mx.array(1.0)),
        affine_weight(codes, scales, scales, bits=4, group=64),
    ]
    shapes = [(6, 256), (4, 6, 32), (6, 128), (4, 6, 128), (6, 64), (6, 64)]
    assert [weight.shape for weight in packed] == shapes


def test_a_tensor_of_gguf_can_have_a_scale() -> None:
    """As NVFP4 has it, beside its blocks."""
    packed = gguf_weight("NVFP4", zeros(3, 36), 64, mx.array([0.25]))
    assert packed.multiplier is not None
    assert packed.multiplier.tolist() == [0.25] * 3


@pytest.mark.parametrize("scale", [mx.array(0.5), mx.array([0.5]), mx.full((6, 1), 0.5)])
def test_a_scale_of_any_shape_is_a_multiplier_of_rows(scale: mx.array) -> None:
    packed = fp8_weight(zeros(6, 64), scale.astype(mx.bfloat16))
    assert packed.multiplier is not None
    assert packed.multiplier.dtype == mx.float32
    assert packed.multiplier.tolist() == [0.5] * 6


def test_scales_of_the_wrong_shape_are_refused() -> None:
    """With both shapes in the message."""
    with pytest.raises(CheckpointError, match=r"\(6, 64\).*\(6, 7\)"):
        nvfp4_weight(zeros(6, 64), zeros(6, 7), mx.array(1.0))
    with pytest.raises(CheckpointError, match=r"\(6, 64\).*\(2, 1\)"):
        fp8_weight(zeros(6, 64), mx.zeros((2, 1)))


def test_few_scales_are_padded_into_device_memory() -> None:
    """MLX would pass fewer than eight elements in constant memory, which kernels do not read."""
    seen: list[mx.array] = []

    def maker(*told: Any) -> Kernel:
        def kernel(*, inputs: Sequence[mx.array], **call: Any) -> list[mx.array]:
            seen.extend(inputs[:3])
            return [mx.zeros(1)]

        return kernel

    multiply(mx.zeros((1, 256)), fp8_weight(zeros(130, 256), mx.ones((2, 2))), maker=maker)
    _, scales, _ = seen
    assert scales.size == 8
    assert scales[:4].tolist() == [1, 1, 1, 1]


def test_powers_of_two_are_exact() -> None:
    """All bytes that are numbers, the smallest of which float32 has no full precision for."""
    every = np.arange(255, dtype=np.uint8)
    wanted = every.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    assert np.array_equal(np.array(powers_of_two(mx.array(every))), wanted)
