"""Packed matrices on their way into a model of mlx-lm's, whose loading knows dense ones.

Each is stood in for by something that can be found again, whatever it is called by then: by a
matrix of zeros that is never computed, or by the numbers of its rows. Whoever stacks the experts of
a layer, or parts gate and up, does so with the numbers, which then say what rows go where.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import numpy.typing as npt

from mtplx.errors import UnsupportedTensorError
from mtplx.kernels.rows import RowRun, joined_rows, kind_of, num_rows_of
from mtplx.models.matrix import JoinedMatrix
from mtplx.models.packed import (
    PackedEmbedding,
    PackedExperts,
    PackedHeads,
    PackedLinear,
)
from mtplx.models.packed_matrix import (
    GroupedExperts,
    PackedMatrix,
    PackedPart,
    grouped_experts,
)

_NUMBERS = mx.int64  # a type that no weights are of
REARRANGED = "mlx-lm's model has its weights in another order"
UNLIKE = "its experts are not all packed alike"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where packed matrices belong in a model.

    modules: by their path. rest: the other weights. failed: what has no place as it is, and why;
    None of what the model does not use.
    """

    modules: Mapping[str, nn.Module]
    rest: dict[str, mx.array]
    failed: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class _Run:
    """Rows of the matrix with this index among those that stand as numbers."""

    source: int
    start: int
    stop: int


class PackedWeights:
    """The packed matrices of a model, and what stands in for them."""

    def __init__(self) -> None:
        self._whole: dict[int, tuple[mx.array, str, PackedPart]] = {}
        self._by_rows: list[tuple[str, PackedMatrix]] = []
        self._starts = [0]  # numbers of their first rows, and of the next one to come

    def stand_in(self, part: PackedPart, name: str = "") -> mx.array:
        """A matrix for a tensor to have in the meantime."""
        zeros = mx.zeros(part.shape)
        self._whole[id(zeros)] = (zeros, name, part)
        return zeros

    def row_numbers(self, matrix: PackedMatrix, name: str) -> mx.array:
        """Numbers [.., N, 1] for a tensor to have in the meantime, each that of a row."""
        start = self._starts[-1]
        self._by_rows.append((name, matrix))
        self._starts.append(start + num_rows_of(matrix.weight))
        numbers = mx.arange(start, self._starts[-1], dtype=_NUMBERS)
        return numbers.reshape(*matrix.weight.shape[:-1], 1)

    def fill(self, model: Any, weights: Mapping[str, mx.array], config: Mapping[str, Any]) -> None:
        """Put the matrices and all other weights into a model, strictly."""
        from mtplx.models.mlx_lm_model import fill

        fill(model, self.put(model, weights), config)

    def put(self, model: Any, weights: Mapping[str, mx.array]) -> dict[str, mx.array]:
        """Put the matrices in their places; returns the weights that are still to be filled in.

        Raises UnsupportedTensorError for a matrix that has no place as it is.
        """
        placement = self.places(model, weights)
        for name, why in placement.failed.items():
            raise UnsupportedTensorError(f"{name} cannot stay packed: {why or REARRANGED}.")
        put_modules(model, placement.modules)
        return placement.rest

    def places(self, model: Any, weights: Mapping[str, mx.array]) -> Placement:
        """Where each matrix belongs. weights: by the names of the model's tree. Changes nothing."""
        failed: dict[str, str | None] = {}
        whole = {name: self._whole[id(a)] for name, a in weights.items() if id(a) in self._whole}
        here = {id(array) for array, _, _ in whole.values()}
        failed |= {name: REARRANGED for key, (_, name, _) in self._whole.items() if key not in here}
        parts: dict[str, tuple[PackedPart | GroupedExperts, list[str]]] = {
            path: (part, [name]) for path, (_, name, part) in whole.items()
        }
        numbered = {n: a for n, a in weights.items() if self._by_rows and a.dtype == _NUMBERS}
        parts |= self._from_rows(numbered, failed)
        rest = {n: a for n, a in weights.items() if n not in whole and n not in numbered}
        modules, places = {}, dict(model.named_modules())
        for path, (part, names) in parts.items():
            at = path.removesuffix(".weight")
            try:
                modules[at] = _module(at, places.get(at), part, rest.get(f"{at}.bias"))
            except UnsupportedTensorError as error:
                failed |= dict.fromkeys(names, str(error))
        rest = {n: a for n, a in rest.items() if n.removesuffix(".bias") not in modules}
        return Placement(modules, rest, failed)

    def _from_rows(
        self, numbered: Mapping[str, mx.array], failed: dict[str, str | None]
    ) -> dict[str, tuple[PackedPart | GroupedExperts, list[str]]]:
        """What the numbers of rows make, with the names of what it is made of."""
        runs = {name: self._runs(array) for name, array in numbered.items()}
        shapes = {name: _as_rows(array.shape) for name, array in numbered.items()}
        bad = self._not_once(runs)
        bad |= {
            run.source: REARRANGED
            for name, shape in shapes.items()
            for run in runs[name]
            if shape is None
        }
        made: dict[str, tuple[PackedPart | GroupedExperts, list[str]]] = {}
        num_bad = -1
        while num_bad != len(bad):  # what is bad of one matrix is so of all that share its stack
            num_bad = len(bad)
            for name, found in runs.items():
                sources = {run.source for run in found}
                why = next((bad[each] for each in sources & bad.keys()), UNLIKE)
                shape = shapes[name]
                part = None
                if shape is not None and not sources & bad.keys():
                    part = self._joined(found, shape)
                if part is None:
                    bad |= {each: bad.get(each, why) for each in sources}
                else:
                    if isinstance(part, PackedPart):
                        part = replace(part, turned=numbered[name].shape != shape)
                    made[name] = part, [self._by_rows[each][0] for each in sorted(sources)]
        failed |= {self._by_rows[each][0]: why for each, why in bad.items()}
        return made

    def _runs(self, numbers: mx.array) -> list[_Run]:
        """Rows that follow each other, of one matrix each."""
        flat: npt.NDArray[np.int64] = np.array(numbers).reshape(-1)
        if not len(flat):
            return []
        sources = np.searchsorted(self._starts, flat, side="right") - 1
        ends = np.flatnonzero((np.diff(flat) != 1) | (np.diff(sources) != 0)) + 1
        found = []
        for first, end in zip([0, *ends], [*ends, len(flat)], strict=True):
            source = int(sources[first])
            if 0 <= source < len(self._by_rows):  # else it is none of ours any more
                start = int(flat[first]) - self._starts[source]
                found.append(_Run(source, start, start + int(end - first)))
        return found

    def _not_once(self, runs: Mapping[str, Sequence[_Run]]) -> dict[int, str | None]:
        """Matrices of which not every row is there exactly once; None of those that are nowhere.

        Arithmetic on the numbers would show here.
        """
        by_source: dict[int, list[_Run]] = {each: [] for each in range(len(self._by_rows))}
        for found in runs.values():
            for run in found:
                by_source[run.source].append(run)
        wrong: dict[int, str | None] = {}
        for source, found in by_source.items():
            bounds = sorted((run.start, run.stop) for run in found)
            edges = [0, *(stop for _, stop in bounds)]
            num_rows = self._starts[source + 1] - self._starts[source]
            if [start for start, _ in bounds] != edges[:-1] or edges[-1] != num_rows:
                wrong[source] = REARRANGED if found else None
        return wrong

    def _joined(
        self, runs: Sequence[_Run], shape: tuple[int, ...]
    ) -> PackedPart | GroupedExperts | None:
        if not runs or sum(run.stop - run.start for run in runs) != np.prod(shape):
            return None
        matrix = self._matrix(runs, shape[:-2])
        if matrix is not None:
            return PackedPart(matrix)
        return self._beside(runs) if len(shape) == 2 else self._by_packing(runs, shape)

    def _matrix(self, runs: Sequence[_Run], stack: tuple[int, ...]) -> PackedMatrix | None:
        """Runs of rows as one matrix, or as a stack of them; None where they are not alike."""
        matrices = [self._by_rows[run.source][1] for run in runs]
        rows = [
            RowRun(matrix.weight, run.start, run.stop)
            for matrix, run in zip(matrices, runs, strict=True)
        ]
        weight = joined_rows(rows, stack)
        return None if weight is None else replace(matrices[0], weight=weight)

    def _by_packing(self, runs: Sequence[_Run], shape: tuple[int, ...]) -> GroupedExperts | None:
        """Experts that are not all packed alike, if each of them is so throughout."""
        groups: dict[object, dict[int, list[_Run]]] = {}
        for expert, own in enumerate(_cut(runs, shape[-2])):
            kinds = {kind_of(self._by_rows[run.source][1].weight) for run in own}
            if len(kinds) > 1:
                return None
            groups.setdefault(kinds.pop(), {})[expert] = own
        stacks = {}
        for experts in groups.values():
            matrix = self._matrix([run for own in experts.values() for run in own], (len(experts),))
            assert matrix is not None
            stacks[tuple(experts)] = matrix
        return grouped_experts(stacks)

    def _beside(self, runs: Sequence[_Run]) -> PackedPart | None:
        """Matrices that are packed differently, each multiplied by itself; rows in order."""
        sources = sorted({run.source for run in runs})
        matrices = tuple(self._by_rows[each][1] for each in sources)
        lengths = [num_rows_of(matrix.weight) for matrix in matrices]
        if sum(run.stop - run.start for run in runs) != sum(lengths):
            return None  # what is computed would be thrown away in part
        starts = dict(zip(sources, np.cumsum([0, *lengths]), strict=False))
        order = [np.arange(run.start, run.stop) + starts[run.source] for run in runs]
        return PackedPart(JoinedMatrix(matrices), rows=mx.array(np.concatenate(order)))


def _as_rows(shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape of numbers of rows, which may lie along the other axis; None where along both."""
    if shape[-1] == 1:
        return shape
    return (*shape[:-2], shape[-1], 1) if len(shape) > 1 and shape[-2] == 1 else None


def _cut(runs: Sequence[_Run], length: int) -> list[list[_Run]]:
    """The runs of every so many rows."""
    parts: list[list[_Run]] = [[]]
    room = length
    for run in runs:
        start = run.start
        while start < run.stop:
            if not room:
                parts.append([])
                room = length
            stop = min(run.stop, start + room)
            parts[-1].append(_Run(run.source, start, stop))
            room, start = room - (stop - start), stop
    return parts


def put_modules(model: Any, modules: Mapping[str, nn.Module]) -> None:
    """Put modules in the places of a model's own, by their path."""
    for path, module in modules.items():
        *parents, last = path.split(".")
        at = model
        for name in parents:
            at = at[int(name)] if isinstance(at, list) else at[name]
        if isinstance(at, list):
            at[int(last)] = module
        else:
            setattr(at, last, module)


def _module(
    path: str, place: Any, part: PackedPart | GroupedExperts, bias: mx.array | None
) -> nn.Module:
    from mlx_lm.models.mla import MultiLinear
    from mlx_lm.models.switch_layers import SwitchLinear

    turned = isinstance(part, PackedPart) and part.turned
    if turned and not isinstance(place, MultiLinear):
        raise UnsupportedTensorError(REARRANGED)
    if place is None or not hasattr(place, "weight") or place.weight.shape != part.shape:
        raise UnsupportedTensorError(
            f"{path} is no matrix of {list(part.shape)} in this model, as its packed weights are"
        )
    if isinstance(part, PackedPart) and isinstance(place, nn.Linear):
        return PackedLinear(part, bias)
    matrix = part if isinstance(part, GroupedExperts) else _alone(part)
    if matrix is not None and isinstance(place, SwitchLinear):
        return PackedExperts(matrix, bias)
    if isinstance(matrix, PackedMatrix) and isinstance(place, MultiLinear):
        return PackedHeads(matrix, turned)
    if isinstance(matrix, PackedMatrix) and isinstance(place, nn.Embedding):
        return PackedEmbedding(matrix)
    raise UnsupportedTensorError(f"{type(place).__name__} is no kind of module for packed weights")


def _alone(part: PackedPart) -> PackedMatrix | None:
    """Its matrix, where that is one and has rows and columns in the model's order."""
    in_order = part.columns is None and part.rows is None
    return part.matrix if isinstance(part.matrix, PackedMatrix) and in_order else None
