"""What a checkpoint is, from its headers alone."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mtplx.errors import CheckpointError
from mtplx.files import accessing
from mtplx.loading.find_head import find_head
from mtplx.loading.fingerprint import fingerprint
from mtplx.loading.gguf_file import READABLE, open_gguf
from mtplx.loading.memory import MemoryNeed, folder_need, gguf_need, held_bytes
from mtplx.loading.tensor_list import (
    TensorEntry,
    gguf_entries,
    num_weights,
    safetensors_entries,
)

_MTP_NAME = re.compile(r"(^|\.)(mtp|mtp_layers|nextn)\.")  # heads that checkpoints bring along


@dataclass(frozen=True, slots=True)
class TensorKind:
    """All tensors of one type. readable: whether this program can load the type."""

    type: str
    count: int
    disk_bytes: int
    held_bytes: int
    readable: bool


@dataclass(frozen=True, slots=True)
class Description:
    """A checkpoint as its headers tell it; None where they do not.

    trunk: the fingerprint by which heads and profiles know this model.
    head: the file of the MTP head that loading would take, None where there is none.
    num_mtp_tensors: tensors of a head inside the checkpoint itself.
    """

    path: Path
    container: str
    architecture: str | None
    name: str | None
    licence: str | None
    num_parameters: int
    context_length: int | None
    vocab_size: int | None
    trunk: str
    head: Path | None
    num_mtp_tensors: int
    kinds: tuple[TensorKind, ...]
    need: MemoryNeed


def describe(path: Path, *, head: Path | None = None, packed: bool = False) -> Description:
    """The checkpoint at `path`, which `resolve` gave.

    head: an MTP head's file, in place of the one that is found. packed: as on a GPU.
    Raises CheckpointError and FileAccessError for files that cannot be read.
    """
    with accessing("read", path):
        return _gguf(path, head, packed) if path.is_file() else _folder(path)


def _gguf(path: Path, given: Path | None, packed: bool) -> Description:
    file = open_gguf(path)
    metadata = file.metadata
    entries = gguf_entries(file)
    architecture = _text(metadata.get("general.architecture"))
    trunk = fingerprint(path)
    head = given or find_head(path, trunk)
    return Description(
        path=path,
        container=f"GGUF {file.version}",
        architecture=architecture,
        name=_text(metadata.get("general.name")),
        licence=_text(metadata.get("general.license")),
        num_parameters=sum(entry.size for entry in entries),
        context_length=_number(metadata.get(f"{architecture}.context_length")),
        vocab_size=_number(metadata.get(f"{architecture}.vocab_size"))
        or _length(metadata.get("tokenizer.ggml.tokens")),
        trunk=trunk,
        head=head,
        num_mtp_tensors=_num_mtp(entries),
        kinds=_kinds(entries, lambda entry: held_bytes(entry, packed=packed), READABLE),
        need=gguf_memory(metadata, entries, head, packed=packed),
    )


def gguf_memory(
    metadata: Mapping[str, object], entries: list[TensorEntry], head: Path | None, *, packed: bool
) -> MemoryNeed:
    """What a GGUF file with this metadata and these tensors takes, together with a head's file."""

    def size(key: str) -> int | None:
        return _number(metadata.get(f"{metadata.get('general.architecture')}.{key}"))

    width, heads = size("embedding_length"), size("attention.head_count")
    head_bytes, shortlist_bytes, head_layers = _head_bytes(head, width)
    return gguf_need(
        entries,
        packed=packed,
        head_bytes=head_bytes,
        shortlist_bytes=shortlist_bytes,
        cache_bytes_per_token=_cache_bytes(
            size("block_count"),
            head_layers,
            size("attention.head_count_kv") or heads,
            size("attention.key_length") or _ratio(width, heads),
            2 if packed else 4,
        ),
        num_texts=_length(metadata.get("tokenizer.ggml.tokens"))
        + _length(metadata.get("tokenizer.ggml.merges")),
    )


def _folder(path: Path) -> Description:
    config = _config(path)
    sizes = _sizes(config)
    entries = safetensors_entries(path)
    quantization = config.get("quantization")
    group_size = quantization.get("group_size") if isinstance(quantization, dict) else None
    return Description(
        path=path,
        container="safetensors",
        architecture=_text(config.get("model_type")),
        name=_text(config.get("_name_or_path")),
        licence=_licence(path),
        num_parameters=num_weights(entries, _number(group_size)),
        context_length=_number(sizes.get("max_position_embeddings")),
        vocab_size=_number(sizes.get("vocab_size")),
        trunk=fingerprint(path),
        head=None,
        num_mtp_tensors=_num_mtp(entries),
        kinds=_kinds(entries, lambda entry: entry.num_bytes, None),
        need=folder_need(entries, cache_bytes_per_token=_folder_cache_bytes(sizes)),
    )


def folder_memory(path: Path) -> MemoryNeed:
    """What a folder of safetensors takes. Raises CheckpointError and FileAccessError."""
    with accessing("read", path):
        sizes = _sizes(_config(path))
        entries = safetensors_entries(path)
    return folder_need(entries, cache_bytes_per_token=_folder_cache_bytes(sizes))


def _sizes(config: Mapping[str, object]) -> Mapping[str, object]:
    """Where a configuration states sizes: models that also see keep those of their text apart."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config


def _folder_cache_bytes(sizes: Mapping[str, object]) -> int | None:
    def size(key: str) -> int | None:
        return _number(sizes.get(key))

    heads = size("num_attention_heads")
    return _cache_bytes(
        size("num_hidden_layers"),
        0,
        size("num_key_value_heads") or heads,
        size("head_dim") or _ratio(size("hidden_size"), heads),
        4 if sizes.get("torch_dtype", sizes.get("dtype")) == "float32" else 2,
    )


def _kinds(
    entries: list[TensorEntry],
    held: Callable[[TensorEntry], int],
    readable: tuple[str, ...] | None,
) -> tuple[TensorKind, ...]:
    grouped: dict[str, list[TensorEntry]] = {}
    for entry in entries:
        grouped.setdefault(entry.type, []).append(entry)
    kinds = [
        TensorKind(
            type=kind,
            count=len(group),
            disk_bytes=sum(entry.num_bytes for entry in group),
            held_bytes=sum(map(held, group)),
            readable=readable is None or kind in readable,
        )
        for kind, group in grouped.items()
    ]
    return tuple(sorted(kinds, key=lambda kind: -kind.disk_bytes))


def _head_bytes(head: Path | None, hidden_size: int | None) -> tuple[int, int, int]:
    """Bytes in memory of a head and of its shortlist's rows, both float32, and its layers."""
    if head is None or hidden_size is None:
        return 0, 0, 0
    entries = {entry.name: entry for entry in safetensors_entries(head)}
    shortlist = entries.pop("mtp.shortlist", None)
    rows = shortlist.size if shortlist is not None else 0
    layers = sum(name.endswith("self_attn.k_proj.weight") for name in entries)
    return 4 * sum(entry.size for entry in entries.values()), 4 * rows * hidden_size, layers


def _cache_bytes(
    layers: int | None,
    head_layers: int,
    kv_heads: int | None,
    head_dim: int | None,
    width: int,
) -> int | None:
    """Bytes of keys and values for each token."""
    if layers is None or kv_heads is None or head_dim is None:
        return None
    return 2 * (layers + head_layers) * kv_heads * head_dim * width


def _config(path: Path) -> Mapping[str, object]:
    file = path / "config.json"
    try:
        config = json.loads(file.read_bytes())
    except ValueError as error:
        raise CheckpointError(f"{file} is not JSON: {error}. Fetch it again.") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{file} holds no JSON object. Fetch it again.")
    return config


def _licence(path: Path) -> str | None:
    """The licence that a model card states at its beginning."""
    card = path / "README.md"
    if not card.is_file():
        return None
    front = card.read_text("utf-8", "replace").split("---")
    match = re.search(r"^license:\s*(\S+)", front[1], re.MULTILINE) if len(front) > 2 else None
    return match[1] if match else None


def _num_mtp(entries: list[TensorEntry]) -> int:
    return sum(_MTP_NAME.search(entry.name) is not None for entry in entries)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _length(value: object) -> int:
    return len(value) if isinstance(value, list) else 0


def _ratio(whole: int | None, parts: int | None) -> int | None:
    return whole // parts if whole and parts else None
