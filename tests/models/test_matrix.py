import mlx.core as mx
import numpy as np
import pytest

from mtplx.models.matrix import AffineMatrix, DenseMatrix, JoinedMatrix, Matrix, stack

WIDTH = 64


def packed(rows: int, bits: int, seed: int = 0) -> AffineMatrix:
    """Random codes with half-precision scales, as they come out of a GGUF."""
    rng = np.random.default_rng([seed, rows, bits])
    codes = rng.integers(0, 2**32, size=(rows, WIDTH * bits // 32), dtype=np.uint32)
    scales, biases = rng.normal(size=(2, rows, WIDTH // 32)).astype(np.float16)
    return AffineMatrix(mx.array(codes), mx.array(scales), mx.array(biases), bits)


def dense(rows: int, seed: int = 0) -> DenseMatrix:
    weight = np.random.default_rng([seed, rows]).normal(size=(rows, WIDTH))
    return DenseMatrix(mx.array(weight.astype(np.float32)))


def activations(rows: int) -> mx.array:
    return mx.random.normal((rows, WIDTH), key=mx.random.key(rows))


def expanded(matrix: Matrix) -> mx.array:
    """Every row of it."""
    return matrix.rows(mx.arange(matrix.shape[0]))


@pytest.mark.parametrize("bits", [4, 8])
def test_packed_rows_are_the_dense_ones(bits: int) -> None:
    """A row of a packed matrix is that of its expansion, bit for bit, in float32."""
    matrix = packed(24, bits)
    ids = mx.array([[3, 0], [23, 3]])
    assert matrix.shape == matrix.dense().shape == (24, WIDTH)
    assert matrix.rows(ids).dtype == mx.float32
    assert mx.array_equal(matrix.rows(ids), matrix.dense().rows(ids))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_packed_products_are_the_dense_ones(num_rows: int, bits: int) -> None:
    """To the rounding of float32 sums."""
    matrix, x = packed(24, bits), activations(num_rows)
    difference = mx.abs(matrix(x) - matrix.dense()(x)).max()
    assert (difference < 1e-5 * mx.abs(matrix(x)).max()).item()


MIXTURES: list[list[Matrix]] = [
    [dense(8), dense(4, 1), dense(4, 2)],
    [packed(8, 4), packed(4, 4, 1)],
    [packed(8, 4), packed(4, 8)],
    [packed(8, 8), dense(4), packed(4, 4)],
]


@pytest.mark.parametrize("matrices", MIXTURES)
def test_a_stack_gives_what_its_parts_give(matrices: list[Matrix]) -> None:
    """Rows in order, whatever the parts are stored as; products to the rounding of their sums."""
    whole, x = stack(matrices), activations(2)
    assert whole.shape == (sum(m.shape[0] for m in matrices), WIDTH)
    assert mx.array_equal(expanded(whole), mx.concatenate([expanded(m) for m in matrices]))
    apart = mx.concatenate([m(x) for m in matrices], axis=-1)
    assert mx.allclose(whole(x), apart, rtol=1e-5, atol=1e-5)
    assert sum(a.nbytes for a in whole.arrays()) == sum(
        a.nbytes for m in matrices for a in m.arrays()
    )


def test_matrices_of_one_kind_become_one_product() -> None:
    """Only what cannot be one matrix stays apart."""
    kinds = [type(stack(matrices)) for matrices in MIXTURES]
    assert kinds == [DenseMatrix, AffineMatrix, JoinedMatrix, JoinedMatrix]


def test_matrices_over_different_activations_cannot_be_stacked() -> None:
    """Their widths are named."""
    narrow = DenseMatrix(mx.zeros((4, 32)))
    with pytest.raises(ValueError, match=r"\[32, 64\]"):
        stack([dense(4), narrow])
