"""Whatever a model's loading does to matrices is found out by the numbers of their rows."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from mtplx.errors import UnsupportedTensorError
from mtplx.kernels.packing import fp8_weight, nvfp4_weight
from mtplx.models.matrix import JoinedMatrix
from mtplx.models.packed import PackedExperts, PackedLinear
from mtplx.models.packed_matrix import GroupedExperts, PackedMatrix, PackedPart
from mtplx.models.packed_weights import REARRANGED, UNLIKE, PackedWeights, Placement

Change = Callable[[mx.array, mx.array], dict[str, mx.array]]


def matrix(rows: int, first: int) -> PackedMatrix:
    """FP8, every row of bytes of its own."""
    codes = mx.broadcast_to(mx.arange(first, first + rows)[:, None], (rows, 32))
    return PackedMatrix(fp8_weight(codes.astype(mx.uint8), mx.array(1.0)))


def model(**sizes: int) -> Any:
    made: Any = nn.Module()
    for name, rows in sizes.items():
        made[name] = nn.Linear(32, rows, bias=False)
    return made


def placed(change: Change, **sizes: int) -> tuple[PackedWeights, Placement]:
    """Two matrices of four rows, 0 to 3 and 10 to 13, that loading changes so."""
    packed = PackedWeights()
    one = packed.row_numbers(matrix(4, 0), "one")
    other = packed.row_numbers(matrix(4, 10), "other")
    return packed, packed.places(model(**sizes), change(one, other))


def first_bytes(placement: Placement, path: str) -> Any:
    part = placement.modules[path].part
    assert isinstance(part.matrix, PackedMatrix)
    return part.matrix.weight.codes[:, 0].tolist()


def test_rows_are_followed_through_joining_and_parting() -> None:
    """In any order."""

    def change(one: mx.array, other: mx.array) -> dict[str, mx.array]:
        rows = mx.concatenate([one, other])[mx.array([7, 0, 1, 4, 5, 6, 3, 2])]
        return {"a.weight": rows[:3], "b.weight": rows[3:]}

    _, placement = placed(change, a=3, b=5)
    assert placement.failed == {}
    assert first_bytes(placement, "a") == [13, 0, 1]
    assert first_bytes(placement, "b") == [10, 11, 12, 3, 2]


@pytest.mark.parametrize(
    "change",
    [
        lambda one, other: {"a.weight": one + 1, "b.weight": other + 1},
        lambda one, other: {"a.weight": one * 2, "b.weight": other},
        lambda one, other: {"a.weight": mx.concatenate([one[:3], one[:1]]), "b.weight": other},
        lambda one, other: {"a.weight": one.swapaxes(0, 1), "b.weight": other},
    ],
)
def test_what_is_no_rearranging_of_rows_is_found(change: Change) -> None:
    """Arithmetic, a row twice, columns for rows: it is not put in any place."""
    _, placement = placed(change, a=4, b=4)
    assert placement.failed["one"] == REARRANGED
    assert "a" not in placement.modules


def test_what_no_place_asks_for_is_dropped_in_silence() -> None:
    _, placement = placed(lambda one, other: {"a.weight": one}, a=4)
    assert placement.failed == {"other": None}
    assert first_bytes(placement, "a") == [0, 1, 2, 3]


def test_rows_of_unlike_matrices_are_put_in_order_behind_their_products() -> None:
    """Each is multiplied by itself."""
    packed = PackedWeights()
    one = packed.row_numbers(matrix(4, 0), "one")
    nvfp4 = nvfp4_weight(mx.zeros((2, 16), mx.uint8), mx.zeros((2, 2), mx.uint8), mx.array(1.0))
    other = packed.row_numbers(PackedMatrix(nvfp4), "other")
    rows = mx.concatenate([other[:1], one, other[1:]])
    module = packed.places(model(a=6), {"a.weight": rows}).modules["a"]
    assert isinstance(module, PackedLinear)
    assert isinstance(module.part.matrix, JoinedMatrix)
    assert module.part.rows is not None
    assert module.part.rows.tolist() == [4, 0, 1, 2, 3, 5]
    stacked = packed.places(model(a=6), {"a.weight": mx.stack([one[:2], other])})
    assert set(stacked.failed.values()) <= {REARRANGED, UNLIKE}
    assert stacked.modules == {}


def test_experts_are_grouped_by_packing_if_each_is_of_one() -> None:
    """Of four rows each, two experts of one packing around one of another."""
    from mlx_lm.models.switch_layers import SwitchLinear

    def placed_experts(change: Callable[[mx.array, mx.array], mx.array]) -> Placement:
        packed = PackedWeights()
        one = packed.row_numbers(matrix(8, 0), "one")
        nvfp4 = nvfp4_weight(mx.zeros((4, 16), mx.uint8), mx.zeros((4, 2), mx.uint8), mx.array(1.0))
        other = packed.row_numbers(PackedMatrix(nvfp4), "other")
        made: Any = nn.Module()
        made.a = SwitchLinear(32, 4, 3, bias=False)
        return packed.places(made, {"a.weight": change(one, other).reshape(3, 4, 1)})

    apart = placed_experts(lambda one, other: mx.concatenate([one[:4], other, one[4:]]))
    module = apart.modules["a"]
    assert isinstance(module, PackedExperts)
    assert isinstance(module.matrix, GroupedExperts)
    assert [group.ids.tolist() for group in module.matrix.groups] == [[0, 2], [1]]
    within = placed_experts(lambda one, other: mx.concatenate([one[:2], other, one[2:]]))
    assert within.failed == {"one": UNLIKE, "other": UNLIKE}


def test_a_matrix_without_a_place_is_refused_by_name() -> None:
    """One that the model has in another shape, and one that it does not have as it is."""
    packed = PackedWeights()
    standing = packed.stand_in(PackedPart(matrix(4, 0)), "one")
    with pytest.raises(UnsupportedTensorError, match=r"one cannot .* a is no matrix of \[4, 32\]"):
        packed.put(model(a=5), {"a.weight": standing})
    with pytest.raises(UnsupportedTensorError, match="one cannot stay packed"):
        packed.put(model(a=4), {"a.weight": standing + 1})
