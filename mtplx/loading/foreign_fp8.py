"""FP8 E4M3 with scales of whole matrices, of rows or of tiles, as other programs store them."""

from dataclasses import replace

import mlx.core as mx

from mtplx.kernels.packing import PackedWeight, fp8_weight, powers_of_two
from mtplx.loading.foreign_matrices import Packed

Block = tuple[int, int]


def expanded_fp8(packed: Packed, block: Block) -> mx.array:
    """The matrix in float32, lazy. block: rows and columns that share a scale where tiles do.

    Raises UnsupportedTensorError for scales of another shape.
    """
    scale, tile = _scales(packed, block)
    values = powers_of_two(scale) if scale.dtype == mx.uint8 else scale.astype(mx.float32)
    if tile is not None:
        num_rows, num_columns = packed.codes.shape[-2:]
        values = mx.repeat(mx.repeat(values, tile[0], -2), tile[1], -1)
        values = values[..., :num_rows, :num_columns]
    return mx.from_fp8(packed.codes, mx.float32) * values


def kept_fp8(packed: Packed, block: Block) -> PackedWeight:
    """The matrix as kernels multiply it, lazy."""
    scale, tile = _scales(packed, block)
    if tile is not None:
        return fp8_weight(packed.codes, scale, tile)
    return fp8_weight(packed.codes, mx.broadcast_to(scale, (*packed.codes.shape[:-1], 1)))


def turned_fp8(packed: Packed, block: Block) -> PackedWeight | None:
    """The matrix with rows for columns, lazy: each code as it is, in another place.

    None where scales are not such that they could go along.
    """
    scale, tile = _scales(packed, block)
    if tile != block and scale.shape[-2] != 1:
        return None
    codes, scale = (mx.contiguous(mx.swapaxes(a, -1, -2)) for a in (packed.codes, scale))
    return kept_fp8(replace(packed, codes=codes, beside={"_scale": scale}), block[::-1])


def _scales(packed: Packed, block: Block) -> tuple[mx.array, Block | None]:
    """Scales in their places, and the tile that shares one.

    Without a tile: one for the matrix, for each expert or for each row, of as many axes as the
    codes. Where gate and up lie behind each other, each may have scales of its own.
    """
    scale, codes = packed.need("_scale", "_scale_inv"), packed.codes
    *stack, num_rows, num_columns = codes.shape
    across = -(-num_columns // block[1])
    if scale.shape == (*stack, -(-num_rows // block[0]), across):
        return scale, block
    if packed.name.endswith("gate_up_proj") and num_rows % 2 == 0 and scale.ndim == codes.ndim:
        half = num_rows // 2
        lines = -(-half // block[0])
        if scale.shape == (*stack, 2 * lines, across):
            halves = mx.repeat(scale.reshape(*stack, 2, lines, across), block[0], -2)
            return halves[..., :half, :].reshape(*stack, num_rows, across), (1, block[1])
        if scale.shape == (*stack, 2, 1):
            return mx.repeat(scale, half, -2), None
    rows = (*stack, num_rows)
    if scale.size == 1:
        return scale.reshape((1,) * codes.ndim), None
    if scale.shape in (rows, (*rows, 1)):
        return scale.reshape(*rows, 1), None
    if stack and scale.shape in ((*stack,), (*stack, 1), (*stack, 1, 1)):
        return scale.reshape(*stack, 1, 1), None
    raise packed.unknown(scale)
