"""Bytes of each buffer that a dispatch fetches, as a GPU's memory would see them."""

from collections.abc import Sequence

import numpy as np

from tests.metal_host.launch import Accesses

SIMD_WIDTH = 32


def fetched_bytes(
    accesses: Accesses, names: Sequence[str], *, stores: bool = False
) -> dict[str, int]:
    """Bytes read (or written) per buffer.

    The lanes of a SIMD-group execute a load together, and a byte that several of them ask for
    comes once; a byte that a later load asks for again is counted again: there is no cache. So a
    weight that is read once per row of activations counts as often, and one that is shared by the
    lanes of a SIMD-group counts once.
    """
    chosen = accesses[(accesses["size"] < 0) == stores]
    return {name: _distinct(chosen[chosen["buffer"] == i]) for i, name in enumerate(names)}


def _distinct(accesses: Accesses) -> int:
    if not len(accesses):
        return 0
    together = _together(accesses)
    sizes = np.abs(accesses["size"]).astype(np.int64)
    starts = np.cumsum(sizes) - sizes
    within = np.arange(sizes.sum()) - np.repeat(starts, sizes)
    byte = np.repeat(accesses["offset"].astype(np.int64), sizes) + within
    pairs = np.stack([np.repeat(together, sizes), byte], axis=1)
    return len(np.unique(pairs, axis=0))


def _together(accesses: Accesses) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """A number per access that is shared by what one SIMD-group executes in one instruction.

    That is the n-th execution of an instruction by each of its lanes.
    """
    keys = ("group", "thread", "pc")
    order = np.lexsort([accesses[k] for k in reversed(keys)])  # stable: time within a key stays
    done = accesses[order]
    new = np.ones(len(done), bool)
    new[1:] = np.any([done[k][1:] != done[k][:-1] for k in keys], axis=0)
    first = np.maximum.accumulate(np.where(new, np.arange(len(done)), 0))
    nth = np.arange(len(done)) - first
    columns = [done["group"], done["thread"] // SIMD_WIDTH, done["pc"], nth]
    table = np.stack([c.astype(np.int64) for c in columns], axis=1)
    numbers = np.unique(table, axis=0, return_inverse=True)[1].reshape(-1)
    out = np.empty(len(done), np.int64)
    out[order] = numbers
    return out
