"""What each tensor of a folder takes in memory once it is loaded, told without reading any."""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from mtplx.loading.expanded_tensors import ForeignTensors, Form
from mtplx.loading.foreign_matrices import packed_matrices
from mtplx.models.family import Tensors
from mtplx.models.packed import held_arrays


def matrix_bytes(foreign: ForeignTensors) -> dict[str, int]:
    """Of foreign packed matrices by name, packed or expanded as they go into a model."""
    held = {}
    for name, each in foreign.matrices.items():
        kept = None if each.form is Form.EXPANDED else each.matrix
        arrays = (each.whole,) if kept is None else kept.arrays()
        held[name] = sum(array.nbytes for array in arrays)
    return held


def taken_bytes(weights: Tensors, module: Any) -> dict[int, int]:
    """By the ids of arrays what they take in a module that they have been filled into."""
    parameters: Any = dict(tree_flatten(module.parameters()))
    held = {id(array): array.nbytes for array in held_arrays(module)}
    return held | {id(array): parameters[name].nbytes for name, array in weights.items()}


def held_by_name(
    stored: Tensors, matrices: Mapping[str, int], taken: Mapping[int, int], total: int
) -> dict[str, int]:
    """Bytes of each stored tensor, `total` together where any shares what remains.

    matrices: as `matrix_bytes` gives them, by the names in `stored`; each counts where its codes
        are. taken: by the ids of arrays that a model has as they are stored, what they take there.
    What a model has made over or left out cannot be told apart by names: it shares what remains.
    """
    held: dict[str, int] = {}
    for packed in packed_matrices(stored):
        held |= dict.fromkeys(packed.stored, 0)
        held[packed.stored[0]] = matrices.get(packed.name, 0)
    for name, array in stored.items():
        if name not in held and id(array) in taken:
            held[name] = taken[id(array)]
    return held | _shared(
        {name: array for name, array in stored.items() if name not in held},
        max(0, total - sum(held.values())),
    )


def _shared(tensors: Mapping[str, mx.array], num_bytes: int) -> dict[str, int]:
    """So many bytes, by what the tensors have on disk; to the byte."""
    on_disk = sum(array.nbytes for array in tensors.values())
    shares, seen, given = {}, 0, 0
    for name, array in tensors.items():
        seen += array.nbytes
        shares[name] = num_bytes * seen // max(1, on_disk) - given
        given += shares[name]
    return shares
