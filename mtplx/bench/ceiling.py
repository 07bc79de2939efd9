"""How fast this machine can read memory, and how much of it a token needs.

Decoding reads every weight for every token, so bytes over read speed bounds tokens per second.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mtplx.blas import num_cores
from mtplx.models.llama import LlamaTarget
from mtplx.speculation import Target

if TYPE_CHECKING:
    import numpy.typing as npt

SMALLEST_BYTES, LARGEST_BYTES = 64 << 20, 1 << 30
NUM_REPEATS = 5


@dataclass(frozen=True, slots=True)
class ReadCeiling:
    """Bytes per second, the best of some repeats: whatever disturbs a read only slows it.

    device: "cpu", where one_thread stands for one core and all_threads for every core, or "gpu",
        which is not told apart by threads.
    """

    device: str
    one_thread: float
    all_threads: float


def weight_bytes_per_token(target: Target) -> int | None:
    """Bytes of weights that one decoding pass reads; None where that depends on the token.

    Not counted: the attention state, and an embedding that is not also the output layer, of which
    a pass reads a row.
    """
    if isinstance(target, LlamaTarget):
        layers = [array for block in target.blocks for array in block.arrays()]
        arrays = [*layers, target.final_norm, *target.lm_head.arrays()]
        return sum(array.nbytes for array in arrays)
    return _mlx_lm_bytes(target)


def _mlx_lm_bytes(target: Target) -> int | None:
    from mtplx.models.mlx_lm_target import MlxLmTarget
    from mtplx.models.packed import PackedExperts, held_arrays, packed_modules

    if not isinstance(target, MlxLmTarget):
        return None
    weights = _parameters(target.model)
    has_experts = any(isinstance(each, PackedExperts) for each in packed_modules(target.model))
    if has_experts or any("expert" in name or "switch_mlp" in name for name in weights):
        return None  # a token reads the experts it is routed to
    table = set() if target.lm_head is target.embedding else set(map(id, target.embedding.arrays()))
    held = [*weights.values(), *held_arrays(target.model)]
    read = [array for array in held if id(array) not in table]
    return sum(array.nbytes for array in [*read, *_parameters(target.final_norm).values()])


def _parameters(module: Any) -> dict[str, mx.array]:
    from mlx.utils import tree_flatten

    return dict(tree_flatten(module.parameters()))


def read_ceiling(num_bytes: int) -> ReadCeiling:
    """Read arrays of this size, within limits, as fast as this machine can.

    num_bytes: what a decoding pass reads, so that caches help here as little or as much as there.
    """
    num_bytes = min(max(num_bytes, SMALLEST_BYTES), LARGEST_BYTES)
    if mx.default_device() == mx.Device(mx.gpu):
        speed = _gpu_speed(num_bytes)
        return ReadCeiling("gpu", speed, speed)
    one = _cpu_speed(num_bytes, 1)
    return ReadCeiling("cpu", one, max(one, _cpu_speed(num_bytes, num_cores())))


def _best(num_bytes: int, read: Callable[[], object]) -> float:
    """Bytes per second of the fastest of several reads, the first one left out."""
    read()
    fastest = min(_seconds(read) for _ in range(NUM_REPEATS))
    return num_bytes / fastest


def _seconds(read: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    read()
    return time.perf_counter() - started_s


def _cpu_speed(num_bytes: int, num_threads: int) -> float:
    """numpy lets go of the interpreter's lock while it reads, so threads read side by side."""
    import numpy as np

    size = num_bytes // 4 // num_threads
    with ThreadPoolExecutor(num_threads) as pool:
        # Each page lies near the thread that first wrote it, here the one that will read it.
        parts = list(pool.map(lambda _: np.ones(size, np.float32), range(num_threads)))

        def read(largest: "Callable[[npt.NDArray[Any]], object]") -> None:
            list(pool.map(largest, parts))

        kinds = (np.max, _integer_sum)
        return max(_best(size * 4 * num_threads, partial(read, kind)) for kind in kinds)


def _integer_sum(part: "npt.NDArray[Any]") -> object:
    import numpy as np

    return np.add.reduce(part.view(np.int64))


def _gpu_speed(num_bytes: int) -> float:
    array = mx.ones(num_bytes // 4, dtype=mx.float32)
    mx.eval(array)
    return _best(array.nbytes, lambda: mx.eval(mx.max(array)))
