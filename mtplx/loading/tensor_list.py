"""What tensors a checkpoint's headers list, without reading any."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from mtplx.errors import CheckpointError
from mtplx.models.quantisation import PackedShape, Stated, packing_of, scaled_paths

if TYPE_CHECKING:
    from mtplx.loading.gguf_file import GgufFile


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor as a header lists it. type: the container's own word, such as Q4_1 or BF16."""

    name: str
    type: str
    shape: tuple[int, ...]
    num_bytes: int

    @property
    def size(self) -> int:
        """Elements, as they are stored: packed codes count once for each word."""
        return prod(self.shape)


def gguf_entries(file: "GgufFile") -> list[TensorEntry]:
    """The tensors of a GGUF model; shapes are rows first."""
    return [
        TensorEntry(tensor.name, tensor.type, tensor.shape, tensor.data.nbytes)
        for tensor in file.tensors.values()
    ]


def safetensors_entries(path: Path) -> list[TensorEntry]:
    """The tensors of a safetensors file, or of all those in a folder.

    Raises CheckpointError, naming the file, where one is damaged.
    """
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    return [entry for file in files for entry in _entries(file)]


def num_weights(entries: list[TensorEntry], stated: Stated) -> int:
    """How many weights the tensors stand for.

    stated: what config.json says of matrices that are packed as MLX packs them, which are counted
    by their scales. Raises CheckpointError where it is not known how one is packed.
    """
    by_name = {entry.name: entry for entry in entries}
    total = sum(entry.size for entry in entries)
    for path in scaled_paths(by_name):
        parts = [by_name.get(f"{path}.{part}") for part in ("weight", "scales", "biases")]
        codes, scales = parts[:2]
        if codes is None or scales is None:
            continue
        shape = PackedShape(path, codes.shape[-1], scales.shape[-1], scales.type == "U8")
        total += scales.size * packing_of(shape, stated).group_size
        total -= sum(part.size for part in parts if part is not None)
    return total


def _entries(file: Path) -> Iterator[TensorEntry]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np") as tensors:
            for name in tensors.keys():  # noqa: SIM118, it is no mapping
                part = tensors.get_slice(name)
                shape, kind = tuple(part.get_shape()), part.get_dtype()
                yield TensorEntry(name, kind, shape, prod(shape) * _BITS.get(kind, 8) // 8)
    except (OSError, SafetensorError) as error:
        raise _damaged(file, error) from error


def _damaged(file: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{file} is not a safetensors file that can be read: {error}. Fetch it again."
    )


_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    "F4": 4,
}


def trained_head_size(head: Path | None) -> tuple[int, int, int]:
    """Bytes in memory of a head in a file of its own, rows of its shortlist, and its layers.

    One that was trained here is held in float32.
    """
    if head is None:
        return 0, 0, 0
    if head.suffix == ".gguf":
        from mtplx.loading.gguf_file import open_gguf

        held = gguf_entries(open_gguf(head))
        layers = sum(entry.name.endswith("attn_k.weight") for entry in held)
        return sum(entry.num_bytes for entry in held), 0, layers
    entries = {entry.name: entry for entry in safetensors_entries(head)}
    shortlist = entries.pop("mtp.shortlist", None)
    rows = shortlist.size if shortlist is not None else 0
    layers = sum(name.endswith("self_attn.k_proj.weight") for name in entries)
    return 4 * sum(entry.size for entry in entries.values()), rows, layers
