"""MTP heads for llama-type trunks in a safetensors file of their own.

Tensors are named as in a DeepSeek checkpoint, under `mtp.`; `mtp.shortlist` holds the vocabulary
ids that drafts are taken from. The metadata names the trunk by its fingerprint.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import mlx.core as mx
import numpy as np

from mtplx.errors import HeadError
from mtplx.models.drafter import Head
from mtplx.models.head import HeadWeights, LlamaHead, TrunkParts
from mtplx.models.llama import LlamaBlock, LlamaDims, LlamaTarget
from mtplx.models.matrix import DenseMatrix, Matrix, stack
from mtplx.models.mlx_lm_target import MlxLmTarget
from mtplx.speculation import Target

FORMAT = "mtplx-head-1"


@dataclass(frozen=True, slots=True)
class HeadFile:
    """A head as it is stored. dims: of its trunk. shortlist: [S] int32, ascending. trunk:
    fingerprint."""

    path: Path
    dims: LlamaDims
    weights: HeadWeights
    shortlist: mx.array
    trunk: str
    num_bytes: int  # on disk

    @property
    def shares_output(self) -> bool:
        """Its logits are made by the trunk's output layer."""
        return True

    def on(self, target: Target) -> Head:
        """The head on its trunk, its keys and values kept as the trunk's are."""
        assert isinstance(target, LlamaTarget | MlxLmTarget)
        parts = TrunkParts(self.dims, target.embedding, target.lm_head)
        return LlamaHead(parts, self.weights, kv_dtype=target.kv_dtype)


def head_shapes(dims: LlamaDims, num_blocks: int) -> dict[str, tuple[int, ...]]:
    """The name and shape of every tensor of a head but the shortlist."""
    width, q_rows = dims.hidden_size, dims.num_heads * dims.head_dim
    kv_rows, mlp = dims.num_kv_heads * dims.head_dim, dims.mlp_size
    shapes: dict[str, tuple[int, ...]] = {
        "mtp.enorm.weight": (width,),
        "mtp.hnorm.weight": (width,),
        "mtp.eh_proj.weight": (width, 2 * width),
        "mtp.norm.weight": (width,),
    }
    for i in range(num_blocks):
        block = {
            "input_layernorm": (width,),
            "self_attn.q_proj": (q_rows, width),
            "self_attn.k_proj": (kv_rows, width),
            "self_attn.v_proj": (kv_rows, width),
            "self_attn.o_proj": (width, q_rows),
            "post_attention_layernorm": (width,),
            "mlp.gate_proj": (mlp, width),
            "mlp.up_proj": (mlp, width),
            "mlp.down_proj": (width, mlp),
        }
        shapes |= {f"mtp.layers.{i}.{name}.weight": shape for name, shape in block.items()}
    return shapes


def read_head(path: Path, dims: LlamaDims) -> HeadFile:
    """A head for a trunk of these sizes, in float32.

    Raises HeadError unless every tensor that the head needs is there in its shape, with finite
    numbers, and nothing is left over: what is wrong with a head only shows as low acceptance.
    """
    tensors, metadata = _load(path)
    if metadata.get("format") != FORMAT:
        raise HeadError(
            f"{path} is not an MTP head of this program: its metadata says format "
            f"{metadata.get('format')!r}, not {FORMAT!r}."
        )
    shortlist = _shortlist(path, tensors.pop("mtp.shortlist", None), dims.vocab_size)
    num_blocks = max(1, sum(name.endswith("self_attn.q_proj.weight") for name in tensors))
    _check(path, tensors, head_shapes(dims, num_blocks))
    weights, trunk = _weights(tensors, num_blocks), metadata.get("trunk", "")
    return HeadFile(path, dims, weights, shortlist, trunk, path.stat().st_size)


def _load(path: Path) -> tuple[dict[str, mx.array], dict[str, str]]:
    try:
        loaded = mx.load(str(path), format="safetensors", return_metadata=True)
    except (RuntimeError, UnicodeDecodeError) as error:
        raise HeadError(f"{path} is not a readable safetensors file: {error}.") from error
    return cast("tuple[dict[str, mx.array], dict[str, str]]", loaded)


def _shortlist(path: Path, stored: mx.array | None, vocab_size: int) -> mx.array:
    if stored is None:
        raise HeadError(f"{path} has no tensor mtp.shortlist. Train the head again.")
    ids = np.array(stored.astype(mx.int32))
    # A token that stands there twice would be drawn with another q than the law is told.
    if ids.ndim != 1 or ids.size == 0 or np.any(np.diff(ids) <= 0):
        raise HeadError(f"{path}: mtp.shortlist is not a list of token ids in ascending order.")
    if ids[0] < 0 or ids[-1] >= vocab_size:
        raise HeadError(
            f"{path}: mtp.shortlist goes from token {ids[0]} to {ids[-1]}, but the vocabulary "
            f"ends at {vocab_size - 1}. The head was made for another model."
        )
    return mx.array(ids)


def _check(
    path: Path, tensors: Mapping[str, mx.array], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    missing, left_over = shapes.keys() - tensors.keys(), tensors.keys() - shapes.keys()
    if missing:
        raise HeadError(f"{path} lacks {min(missing)} ({len(missing)} tensors are missing).")
    if left_over:
        raise HeadError(f"{path} holds {min(left_over)}, which no part of the head uses.")
    for name, shape in shapes.items():
        if tensors[name].shape != shape:
            raise HeadError(
                f"{path}: {name} is {tensors[name].shape}, this trunk needs {shape}. "
                "The head was made for another model."
            )
        if not mx.all(mx.isfinite(tensors[name])).item():
            raise HeadError(f"{path}: {name} holds numbers that are not finite. Train it again.")


def _weights(tensors: Mapping[str, mx.array], num_blocks: int) -> HeadWeights:
    def vector(name: str) -> mx.array:
        return tensors[f"mtp.{name}.weight"].astype(mx.float32)

    def matrix(*names: str) -> Matrix:
        return stack([DenseMatrix(vector(name)) for name in names])

    def block(at: str) -> LlamaBlock:
        return LlamaBlock(
            attention_norm=vector(f"{at}.input_layernorm"),
            qkv=matrix(*(f"{at}.self_attn.{x}_proj" for x in "qkv")),
            output=matrix(f"{at}.self_attn.o_proj"),
            mlp_norm=vector(f"{at}.post_attention_layernorm"),
            gate_up=matrix(f"{at}.mlp.gate_proj", f"{at}.mlp.up_proj"),
            down=matrix(f"{at}.mlp.down_proj"),
        )

    return HeadWeights(
        enorm=vector("enorm"),
        hnorm=vector("hnorm"),
        eh_proj=matrix("eh_proj"),
        blocks=tuple(block(f"layers.{i}") for i in range(num_blocks)),
        norm=vector("norm"),
    )


def write_head(
    path: Path,
    parameters: Mapping[str, mx.array],
    dims: LlamaDims,
    shortlist: mx.array,
    metadata: Mapping[str, str],
) -> None:
    """Store training parameters (`training/initialise.py` names) in bfloat16, in place at once.

    Raises FileAccessError.
    """
    from mtplx.files import write_atomically

    q_rows, kv_rows = dims.num_heads * dims.head_dim, dims.num_kv_heads * dims.head_dim
    tensors = {
        f"mtp.{name}.weight": parameters[name] for name in ("enorm", "hnorm", "eh_proj", "norm")
    }
    num_blocks = sum(name.endswith(".qkv") for name in parameters)
    for i in range(num_blocks):
        part = {name.split(".")[-1]: v for name, v in parameters.items() if f"blocks.{i}." in name}
        q, k, v = mx.split(part["qkv"], [q_rows, q_rows + kv_rows])
        gate, up = mx.split(part["gate_up"], 2)
        named = {
            "input_layernorm": part["attention_norm"],
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.o_proj": part["output"],
            "post_attention_layernorm": part["mlp_norm"],
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": part["down"],
        }
        tensors |= {f"mtp.layers.{i}.{name}.weight": value for name, value in named.items()}
    stored = {name: value.astype(mx.bfloat16) for name, value in tensors.items()}
    stored["mtp.shortlist"] = shortlist.astype(mx.int32)
    content = io.BytesIO()  # MLX itself tells nothing of what is wrong with a disk
    mx.save_safetensors(content, stored, {"format": FORMAT, **metadata})
    write_atomically(path, content.getvalue())
