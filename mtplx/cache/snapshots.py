"""Snapshots of several caches as one, and back."""

from collections.abc import Sequence

from mtplx.speculation import Snapshot


def pack(parts: Sequence[Snapshot]) -> Snapshot:
    """One snapshot of several; `unpack` gives them back."""
    sizes = [size for part in parts for size in (len(part.numbers), len(part.arrays))]
    return Snapshot(
        (len(parts), *sizes, *(number for part in parts for number in part.numbers)),
        tuple(array for part in parts for array in part.arrays),
    )


def unpack(snapshot: Snapshot) -> list[Snapshot]:
    """The snapshots of which `pack` made one."""
    num_parts, *rest = snapshot.numbers
    sizes, numbers, arrays = rest[: 2 * num_parts], rest[2 * num_parts :], list(snapshot.arrays)
    parts = []
    for num_numbers, num_arrays in zip(sizes[::2], sizes[1::2], strict=True):
        parts.append(Snapshot(tuple(numbers[:num_numbers]), tuple(arrays[:num_arrays])))
        del numbers[:num_numbers], arrays[:num_arrays]
    return parts
