"""Names of element types: MLX's, numpy's and the ones in the text of a kernel."""

from typing import Any

import ml_dtypes
import mlx.core as mx
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

IN_TEXT = {
    "float32": "float",
    "float16": "float16_t",
    "bfloat16": "bfloat16_t",
    "bool": "bool",
    "int8": "int8_t",
    "int16": "int16_t",
    "int32": "int32_t",
    "int64": "int64_t",
    "uint8": "uint8_t",
    "uint16": "uint16_t",
    "uint32": "uint32_t",
    "uint64": "uint64_t",
}


def name_of(dtype: Any) -> str:
    """The name of one of MLX's or numpy's dtypes, as a key of IN_TEXT."""
    if isinstance(dtype, mx.Dtype):
        name = str(dtype).removeprefix("mlx.core.")
    else:
        name = np.dtype(dtype).name
    return "bool" if name == "bool_" else name


def numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def to_numpy(value: Any) -> Array:
    """An array of either library, or a scalar in the type that MLX would give it."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, mx.array):
        if value.dtype == mx.bfloat16:
            words = np.array(value.view(mx.uint16)).view(ml_dtypes.bfloat16)
            return np.asarray(words).reshape(value.shape)
        return np.array(value)
    array: Array = np.asarray(value)
    default = {np.dtype(np.float64): np.float32, np.dtype(np.int64): np.int32}.get(array.dtype)
    return array if default is None else np.asarray(array, default)


def to_mlx(value: Array) -> mx.array:
    if value.dtype == ml_dtypes.bfloat16:
        return mx.array(value.view(np.uint16)).view(mx.bfloat16)
    return mx.array(value)
