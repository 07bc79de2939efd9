"""What memory a model takes, told from headers before it is loaded, and measured after."""

import resource
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mtplx.loading.tensor_list import TensorEntry

# What loading holds for a moment beside the weights: expanded matrices on their way into joined
# ones, and buffers that MLX and the allocator keep. Measured as a share of the weights.
TRANSIENT_SHARE = 0.1
MLX_LM_BYTES = 235_000_000  # the libraries that mlx-lm brings into the process
TEXT_BYTES = 300  # per entry of a vocabulary or of its merges, in the reader and the tokenizer
_BITS = {"Q4_0": 5, "Q4_1": 5, "Q8_0": 9}  # packed in MLX's groups of 32: codes, scale and bias


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes that a model takes.

    weights_bytes, head_bytes, shortlist_bytes: held as long as the model is.
    cache_bytes_per_token: what each token of context adds, the head's own included; None where
        the metadata does not say.
    process_bytes: the interpreter and its libraries, without a model.
    loading_peak_bytes: the most that the process holds in resident memory while loading.
    """

    weights_bytes: int
    head_bytes: int
    shortlist_bytes: int
    cache_bytes_per_token: int | None
    process_bytes: int
    loading_peak_bytes: int


def held_bytes(entry: TensorEntry, *, packed: bool) -> int:
    """Bytes in memory of a GGUF tensor: kept packed for a GPU, expanded to float32 for a CPU."""
    if packed and entry.type in _BITS:
        return entry.size * _BITS[entry.type] // 8
    return entry.size * 4


def gguf_need(
    entries: Iterable[TensorEntry],
    *,
    packed: bool,
    head_bytes: int,
    shortlist_bytes: int,
    cache_bytes_per_token: int | None,
    num_texts: int,
) -> MemoryNeed:
    """What a GGUF file takes: it is mapped and copied, then expanded or joined.

    num_texts: entries of the vocabulary and its merges.
    """
    listed = list(entries)
    on_disk = sum(entry.num_bytes for entry in listed)
    weights = sum(held_bytes(entry, packed=packed) for entry in listed)
    process = resident_bytes() + num_texts * TEXT_BYTES
    return MemoryNeed(
        weights_bytes=weights,
        head_bytes=head_bytes,
        shortlist_bytes=shortlist_bytes,
        cache_bytes_per_token=cache_bytes_per_token,
        process_bytes=process,
        loading_peak_bytes=process + 2 * on_disk + round(weights * (1 + TRANSIENT_SHARE)),
    )


def folder_need(entries: Iterable[TensorEntry], *, cache_bytes_per_token: int | None) -> MemoryNeed:
    """What a folder takes: mlx-lm keeps tensors as they are stored."""
    weights = sum(entry.num_bytes for entry in entries)
    loaded = "mlx_lm" in sys.modules
    process = resident_bytes() + (0 if loaded else MLX_LM_BYTES)
    return MemoryNeed(
        weights_bytes=weights,
        head_bytes=0,
        shortlist_bytes=0,
        cache_bytes_per_token=cache_bytes_per_token,
        process_bytes=process,
        loading_peak_bytes=process + round(weights * (1 + TRANSIENT_SHARE)),
    )


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
