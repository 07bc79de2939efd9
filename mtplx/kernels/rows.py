"""Rows of packed matrices, put together to others as they are.

Formats lie in rows, so rows can be taken, put in another order and stacked without touching a
block.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import mlx.core as mx

from mtplx.kernels.packing import PackedWeight


@dataclass(frozen=True, slots=True)
class RowRun:
    """Rows start up to stop of a matrix, or of a stack of matrices as if they were one."""

    weight: PackedWeight
    start: int
    stop: int


def joined_rows(runs: Sequence[RowRun], stack: tuple[int, ...]) -> PackedWeight | None:
    """Runs of rows as one matrix, or as `stack` matrices of as many rows each.

    None where they are packed differently. Lazy.
    """
    if any(_parts_scales(run) for run in runs):
        runs = [replace(run, weight=_with_own_scales(run.weight)) for run in runs]
    first = runs[0].weight
    if any(kind_of(run.weight) != kind_of(first) for run in runs):
        return None
    codes = _plane([run.weight.codes for run in runs], runs)
    assert codes is not None
    return replace(
        first,
        shape=(*stack, len(codes) // _size(stack), first.shape[-1]),
        codes=codes.reshape(*stack, -1, codes.shape[-1]),
        scales=_plane([run.weight.scales for run in runs], runs),
        biases=_plane([run.weight.biases for run in runs], runs),
        multiplier=_multiplier(runs),
    )


def taken_rows(weight: PackedWeight, ids: mx.array) -> PackedWeight:
    """Rows `ids` [M] of a matrix [N, K] as a matrix of their own. Lazy."""
    weight = _with_own_scales(weight)

    def taken(plane: mx.array | None) -> mx.array | None:
        return None if plane is None else plane[ids]

    return replace(
        weight,
        shape=(ids.size, weight.shape[-1]),
        codes=weight.codes[ids],
        scales=taken(weight.scales),
        biases=taken(weight.biases),
        multiplier=taken(weight.multiplier),
    )


def num_rows_of(weight: PackedWeight) -> int:
    """Rows of a matrix, or of all those of a stack."""
    return _size(weight.shape[:-1])


def kind_of(weight: PackedWeight) -> tuple[object, ...]:
    """What has to be the same for rows to be put together."""
    planes = weight.scales is None, weight.biases is None
    return weight.packing, weight.shape[-1], weight.run, *planes


def _parts_scales(run: RowRun) -> bool:
    """Whether it begins or ends between rows that share scales."""
    shared = run.weight.packing.shared_rows
    return run.start % shared > 0 or run.stop % shared > 0


def _with_own_scales(weight: PackedWeight) -> PackedWeight:
    """A line of scales for each row, where several share one."""
    packing, rows = weight.packing, num_rows_of(weight)
    if packing.shared_rows == 1:
        return weight
    assert weight.scales is not None
    template = (*((n, 1 if n == "ROWS" else v) for n, v in packing.template),)
    lines = weight.scales.reshape(-1, weight.scales.shape[-1])
    return replace(
        weight,
        packing=replace(packing, template=template, shared_rows=1),
        scales=mx.repeat(lines, packing.shared_rows, 0)[:rows],
    )


def _plane(planes: Sequence[mx.array | None], runs: Sequence[RowRun]) -> mx.array | None:
    """The lines that belong to the runs, of a plane of each; none of a plane that there is not."""
    found = []
    for plane, run in zip(planes, runs, strict=True):
        if plane is None:
            return None
        lines, rows = plane.reshape(-1, plane.shape[-1]), num_rows_of(run.weight)
        shared = run.weight.packing.shared_rows if len(lines) < rows else 1
        found.append(lines[run.start // shared : -(-run.stop // shared)])
    return found[0] if len(found) == 1 else mx.concatenate(found)


def _multiplier(runs: Sequence[RowRun]) -> mx.array | None:
    if all(run.weight.multiplier is None for run in runs):
        return None
    return mx.concatenate(
        [
            mx.ones(run.stop - run.start)
            if run.weight.multiplier is None
            else run.weight.multiplier[run.start : run.stop]
            for run in runs
        ]
    )


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size
