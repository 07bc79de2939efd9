"""Random matrices as other programs pack them, with the weights that they stand for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import mlx.core as mx
import numpy as np

from tests.loading.test_foreign_packing import Floats, e2m1, e4m3, numbers, random_bytes, repeated

Parts = dict[str, Any]  # numpy's types lose the width of what is computed


@dataclass(frozen=True, slots=True)
class Packing:
    """One way to pack. pack: of rows, width and seed the parts, and the weights that they stand for
    but for a factor. scale: the part that weights grow with, and whether it is a reciprocal."""

    pack: Callable[[int, int, int], tuple[Parts, Floats]]
    scale: str
    config: Mapping[str, Any]

    def matrix(self, rows: int, width: int, seed: int) -> tuple[dict[str, mx.array], Floats]:
        """Parts, and weights of a size that keeps logits apart, another one for each seed."""
        parts, weights = self.pack(rows, width, seed)
        size = np.float32((1 + seed % 3) / np.abs(weights).std() / width**0.5)
        if self.scale == "weight_global_scale":
            parts[self.scale] = np.float32(1) / size
            size = np.float32(1) / parts[self.scale]
        elif self.scale:
            parts[self.scale] = np.asarray(parts[self.scale] * size)
        return {name: mx.array(np.asarray(v)) for name, v in parts.items()}, (
            weights * size if self.scale else weights
        )


def _modelopt(rows: int, width: int, seed: int) -> tuple[Parts, Floats]:
    codes, scale = random_bytes(rows, width // 2, seed=seed), numbers(rows, width // 16, seed=seed)
    scale &= 0x3F
    parts = {"weight": codes, "weight_scale": scale, "weight_scale_2": np.float32(1)}
    return parts | {"input_scale": np.float32(7)}, e2m1(codes) * repeated(e4m3(scale), 16)


def _compressed(rows: int, width: int, seed: int) -> tuple[Parts, Floats]:
    parts, weights = _modelopt(rows, width, seed)
    kept = {"weight_packed": parts["weight"], "weight_scale": parts["weight_scale"]}
    return kept | {"weight_global_scale": np.float32(1)}, weights


def _fp8(shape: Callable[[int], tuple[int, ...]]) -> Callable[..., tuple[Parts, Floats]]:
    def pack(rows: int, width: int, seed: int) -> tuple[Parts, Floats]:
        codes = numbers(rows, width, seed=seed) & 0xBF
        scale = np.random.default_rng(seed).uniform(0.5, 2, shape(rows)).astype(np.float32)
        return {"weight": codes, "weight_scale": scale}, e4m3(codes) * scale

    return pack


def _fp8_tiles(tile: int) -> Callable[..., tuple[Parts, Floats]]:
    def pack(rows: int, width: int, seed: int) -> tuple[Parts, Floats]:
        codes = numbers(rows, width, seed=seed) & 0xBF
        shape = (-(-rows // tile), -(-width // tile))
        scale = np.random.default_rng(seed).uniform(0.5, 2, shape).astype(np.float32)
        wide = np.kron(scale, np.ones((tile, tile), np.float32))[:rows, :width]
        return {"weight": codes, "weight_scale_inv": scale}, e4m3(codes) * wide

    return pack


def _fp8_powers(rows: int, width: int, seed: int) -> tuple[Parts, Floats]:
    codes = numbers(rows, width, seed=seed) & 0xBF
    powers = random_bytes(-(-rows // 128), -(-width // 128), seed=seed) % 4 + 118
    scale = powers.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    wide = np.kron(scale, np.ones((128, 128), np.float32))[:rows, :width]
    return {"weight": codes, "weight_scale_inv": powers}, e4m3(codes) * wide


def _mx(bits: int) -> Callable[..., tuple[Parts, Floats]]:
    def pack(rows: int, width: int, seed: int) -> tuple[Parts, Floats]:
        codes = random_bytes(rows, width // 2, seed=seed)
        if bits == 8:
            codes = numbers(rows, width, seed=seed) & 0xBF
        powers = random_bytes(rows, width // 32, seed=seed + 1) % 4 + (120 + seed % 2)
        scale = powers.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
        weights = (e2m1 if bits == 4 else e4m3)(codes) * repeated(scale, 32)
        return {"weight_packed": codes, "weight_scale": powers}, weights

    return pack


def _int4(rows: int, width: int, seed: int) -> tuple[Parts, Floats]:
    random = np.random.default_rng(seed)
    words = random.integers(0, 2**32, (rows, width // 8), dtype=np.uint32)
    codes = ((words[..., None] >> np.arange(0, 32, 4, dtype=np.uint32)) & 15).reshape(rows, -1)
    scale = random.uniform(0.5, 2, (rows, width // 32)).astype(np.float32)
    parts = {"weight_packed": words.view(np.int32), "weight_scale": scale}
    weights = (codes.astype(np.float32) - 8) * repeated(scale, 32)
    return parts | {"weight_shape": np.array([rows, width])}, weights


PACKINGS: Mapping[str, Packing] = {
    "ModelOpt NVFP4": Packing(_modelopt, "weight_scale_2", {}),
    "compressed-tensors NVFP4": Packing(_compressed, "weight_global_scale", {}),
    "FP8 of one scale": Packing(_fp8(lambda rows: ()), "weight_scale", {}),
    "FP8 by rows": Packing(_fp8(lambda rows: (rows, 1)), "weight_scale", {}),
    "FP8 by tiles that fit": Packing(
        _fp8_tiles(16), "weight_scale_inv", {"weight_block_size": [16, 16]}
    ),
    "FP8 by tiles that do not": Packing(_fp8_tiles(128), "weight_scale_inv", {}),
    "FP8 by tiles with powers of two": Packing(_fp8_powers, "", {}),
    "MXFP4": Packing(_mx(4), "", {}),
    "MXFP8": Packing(_mx(8), "", {}),
    "int4": Packing(_int4, "weight_scale", {}),
}
