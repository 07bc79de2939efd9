"""What packing may lose is allowed and nothing more is."""

from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest

from mtplx.conversion.plan import DTYPES, Part, PlannedFile, Unit, make_parts
from mtplx.conversion.tensor_file import write_tensors
from mtplx.conversion.verify import verify_file
from mtplx.errors import CheckpointError
from mtplx.models.quantisation import AFFINE, Packing

WIDTH = 384
TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def awkward(dtype: mx.Dtype) -> Iterator[mx.array]:
    """Matrices that packing has trouble with: outliers, no spread, far from zero, tiny, huge."""
    mx.random.seed(11)
    normal = mx.random.normal((64, WIDTH))
    sparse = normal * (mx.random.uniform(shape=normal.shape) < 0.02)
    for matrix in (
        normal,
        5 + 0.01 * normal,
        50 * sparse + 0.01 * normal,
        mx.zeros(normal.shape),
        3.7 * mx.ones(normal.shape),
        1e-4 * normal,
        mx.abs(normal),
        mx.sign(normal) * (1 + 0.001 * normal),
        1e4 * normal,
    ):
        yield matrix.astype(dtype)


def written(
    folder: Path, source: mx.array, packing: Packing | None, spoil: int | None = None
) -> tuple[Path, PlannedFile]:
    """A file of one tensor. spoil: the part of it in which one element is another one."""
    dtype = next(name for name, kind in DTYPES.items() if kind == source.dtype)
    arrays = make_parts(Unit("fc.weight", "fc", packing, None, ()), source)
    names = ["weight", "scales", "biases"][: len(arrays)]
    kinds = [TYPES[dtype] if array.dtype == source.dtype else "U32" for array in arrays]
    parts = tuple(
        Part(f"fc.{name}", kind, tuple(array.shape), array.nbytes)
        for name, kind, array in zip(names, kinds, arrays, strict=True)
    )
    if spoil is not None:
        flat = arrays[spoil].reshape(-1)
        flat[7] = flat[7] ^ 0xF0000000 if flat.dtype == mx.uint32 else flat[7] + 1
        arrays[spoil] = flat.reshape(arrays[spoil].shape)
    write_tensors(folder / "x.safetensors", parts, iter(arrays), {"format": "mlx"})
    unit = Unit("fc.weight", "fc", packing, None, parts)
    return folder / "x.safetensors", PlannedFile("x.safetensors", (unit,))


@pytest.mark.parametrize("packing", AFFINE, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_packing_loses_more_than_is_allowed(
    tmp_path: Path, dtype: str, packing: Packing
) -> None:
    """On matrices of every awkward kind; and less than half of it would not be enough."""
    worst = []
    for source in awkward(DTYPES[dtype]):
        path, file = written(tmp_path, source, packing)
        (found,) = verify_file(path, file, {"fc.weight": source}).values()
        worst.append(found.worst)
    assert 0.3 < max(worst) <= 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_packed_is_equal_bit_for_bit(tmp_path: Path, dtype: str) -> None:
    """Not numbers included, where the original has them."""
    source = next(awkward(DTYPES[dtype]))
    source[0, 0] = mx.nan
    path, file = written(tmp_path, source, None)
    assert verify_file(path, file, {"fc.weight": source})[None].worst == 0


@pytest.mark.parametrize(
    ("packing", "spoil"),
    [(None, 0), *((Packing(bits, 64), part) for bits in (4, 8) for part in range(3))],
    ids=str,
)
def test_one_wrong_element_is_noticed(tmp_path: Path, packing: Packing | None, spoil: int) -> None:
    """In codes, scales and biases, and in a tensor that is not packed."""
    source = next(awkward(mx.float32))
    path, file = written(tmp_path, source, packing, spoil)
    with pytest.raises(CheckpointError, match=r"fc.* is not what the source holds"):
        verify_file(path, file, {"fc.weight": source})


@pytest.mark.parametrize("packing", [None, Packing(4, 64)], ids=str)
def test_another_matrix_is_noticed(tmp_path: Path, packing: Packing | None) -> None:
    """The same numbers in another order are another matrix."""
    source = next(awkward(mx.bfloat16))
    path, file = written(tmp_path, source[::-1], packing)
    with pytest.raises(CheckpointError, match="is not what the source holds"):
        verify_file(path, file, {"fc.weight": source})


def test_tensors_too_many_or_missing_are_noticed(tmp_path: Path) -> None:
    """By name."""
    source = next(awkward(mx.float32))
    path, file = written(tmp_path, source, None)
    with pytest.raises(CheckpointError, match=r"fc\.weight differs"):
        verify_file(path, PlannedFile(file.name, ()), {"fc.weight": source})
