"""What memory a model takes, told from headers before it is loaded, and measured after."""

import os
import resource
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from mtplx.checkpoints import MAX_CHECKPOINT_BYTES, MAX_CHECKPOINTS
from mtplx.loading.gguf_tensors import stays_on_gpu
from mtplx.loading.tensor_list import TensorEntry
from mtplx.models.cache_need import CacheNeed

# What loading holds for a moment beside the weights: matrices on their way into joined ones, and
# buffers that MLX and the allocator keep. Measured as a share of the weights.
TRANSIENT_SHARE = 0.1
MLX_LM_BYTES = 235_000_000  # the libraries that mlx-lm brings into the process
TEXT_BYTES = 300  # per entry of a vocabulary or of its merges, in the reader and the tokenizer
# Packed in MLX's groups of 32: codes, a scale and a bias in float32.
_BITS = {"Q4_0": 6, "Q4_1": 6, "Q8_0": 10}


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes that a model takes.

    weights_bytes, head_bytes, shortlist_bytes: held as long as the model is.
    state_bytes: what a text takes however long it is: windows when full, and recurrent states with
        the places to come back to.
    cache_bytes_per_token: what each token of context adds, the head's own included; None where
        the metadata does not say.
    process_bytes: the interpreter and its libraries, without a model.
    loading_peak_bytes: the most that the process holds in resident memory while loading.
    """

    weights_bytes: int
    head_bytes: int
    shortlist_bytes: int
    state_bytes: int
    cache_bytes_per_token: int | None
    process_bytes: int
    loading_peak_bytes: int

    @property
    def held_bytes(self) -> int:
        """What the model holds before there is any context."""
        return self.weights_bytes + self.head_bytes + self.shortlist_bytes + self.state_bytes

    def split(self, num_machines: int) -> "MemoryNeed":
        """What each of several machines takes at least: the layers, which are split, are most."""
        per_token = self.cache_bytes_per_token
        return replace(
            self,
            weights_bytes=self.weights_bytes // num_machines,
            cache_bytes_per_token=None if per_token is None else per_token // num_machines,
        )

    def largest_context(self, limit_bytes: int) -> int | None:
        """How many tokens fit into so much memory beside the model; None where that is unknown."""
        if self.cache_bytes_per_token is None:
            return None
        return max(0, limit_bytes - self.held_bytes) // max(1, self.cache_bytes_per_token)


def memory_limit_bytes() -> int:
    """What a model and its context may take on this machine.

    On a GPU what Metal recommends; elsewhere nine tenths of the memory, or of a container's share:
    the rest is for this process and its libraries.
    """
    import mlx.core as mx

    recommended = mx.device_info().get("max_recommended_working_set_size")
    return int(recommended) if recommended else total_memory_bytes() * 9 // 10


def total_memory_bytes() -> int:
    """The memory that this process could ever use."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no container, or one without a limit
        return total


def held_bytes(entry: TensorEntry, *, packed: bool, grouped: bool = True) -> int:
    """Bytes in memory of a GGUF tensor: kept as it is for a GPU, expanded to float32 for a CPU.

    grouped: whether blocks that MLX has a packing for become that, as in llama-type trunks.
    """
    if packed and grouped and entry.type in _BITS:
        return entry.size * _BITS[entry.type] // 8
    kept = packed and stays_on_gpu(entry.type, entry.shape)
    return entry.num_bytes if kept else entry.size * 4


def gguf_need(
    entries: Iterable[TensorEntry],
    *,
    packed: bool,
    grouped: bool,
    head_bytes: int,
    shortlist_bytes: int,
    state: CacheNeed | None,
    num_texts: int,
) -> MemoryNeed:
    """What a GGUF file takes: it is mapped, and expanded from there, or copied and then joined.

    grouped: as in held_bytes. state: None where it is not known. num_texts: entries of the
    vocabulary and its merges.
    """
    listed = list(entries)
    on_disk = sum(entry.num_bytes for entry in listed)
    weights = sum(held_bytes(entry, packed=packed, grouped=grouped) for entry in listed)
    process = resident_bytes() + num_texts * TEXT_BYTES
    transient = on_disk + round(weights * TRANSIENT_SHARE) if packed else 0
    return MemoryNeed(
        weights_bytes=weights,
        head_bytes=head_bytes,
        shortlist_bytes=shortlist_bytes,
        state_bytes=0 if state is None else fixed_state_bytes(state),
        cache_bytes_per_token=None if state is None else state.per_token,
        process_bytes=process,
        loading_peak_bytes=process + on_disk + weights + transient,
    )


def folder_need(
    weights_bytes: int,
    *,
    head_bytes: int = 0,
    shortlist_bytes: int = 0,
    state: CacheNeed | None = None,
) -> MemoryNeed:
    """What a folder takes: its tensors stay as mlx-lm's model takes them. state: None where it is
    not known."""
    loaded = "mlx_lm" in sys.modules
    process = resident_bytes() + (0 if loaded else MLX_LM_BYTES)
    return MemoryNeed(
        weights_bytes=weights_bytes,
        head_bytes=head_bytes,
        shortlist_bytes=shortlist_bytes,
        state_bytes=0 if state is None else fixed_state_bytes(state),
        cache_bytes_per_token=None if state is None else state.per_token,
        process_bytes=process,
        loading_peak_bytes=process + round((weights_bytes + head_bytes) * (1 + TRANSIENT_SHARE)),
    )


def fixed_state_bytes(state: CacheNeed) -> int:
    """What a text takes however long it is: windows, and recurrent states with the places to come
    back to."""
    checkpoints = min(MAX_CHECKPOINTS * state.recurrent, MAX_CHECKPOINT_BYTES)
    return state.windows + state.recurrent + max(checkpoints, state.recurrent)


def resident_bytes() -> int:
    """Memory this process holds now; on macOS the most it has held."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return peak_resident_bytes()
    return pages * resource.getpagesize()


def peak_resident_bytes() -> int:
    """The most memory this process has held.

    On Linux from the kernel's record of this address space: getrusage also counts the process
    that started this one.
    """
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
