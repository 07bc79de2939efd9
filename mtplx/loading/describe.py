"""What a checkpoint is, from its headers alone."""

import re
from collections.abc import Mapping
from pathlib import Path

from mtplx.files import accessing
from mtplx.loading.describe_folder import describe_folder
from mtplx.loading.description import Description, kinds_of, number_or_none, text_or_none
from mtplx.loading.find_head import find_head
from mtplx.loading.fingerprint import fingerprint
from mtplx.loading.gguf_file import READABLE, open_gguf
from mtplx.loading.gguf_known import ARCHITECTURES, unknown_architecture
from mtplx.loading.gguf_llama import PAIRWISE
from mtplx.loading.memory import MemoryNeed, gguf_need, held_bytes
from mtplx.loading.tensor_list import TensorEntry, gguf_entries, safetensors_entries

_MTP_NAME = re.compile(r"(^|\.)(mtp|mtp_layers|nextn)\.")  # heads that checkpoints bring along


def describe(path: Path, *, head: Path | None = None, packed: bool = False) -> Description:
    """The checkpoint at `path`, which `resolve` gave.

    head: an MTP head's file, in place of the one that is found. packed: as on a GPU.
    Raises CheckpointError and FileAccessError for files that cannot be read.
    """
    with accessing("read", path):
        return _gguf(path, head, packed) if path.is_file() else describe_folder(path)


def _gguf(path: Path, given: Path | None, packed: bool) -> Description:
    file = open_gguf(path)
    metadata = file.metadata
    entries = gguf_entries(file)
    architecture = text_or_none(metadata.get("general.architecture"))
    trunk, num_mtp_tensors = fingerprint(path), _num_mtp(entries)
    head = given or find_head(path, trunk)
    brings_head = architecture in ARCHITECTURES and num_mtp_tensors > 0
    return Description(
        path=path,
        container=f"GGUF {file.version}",
        architecture=architecture,
        name=text_or_none(metadata.get("general.name")),
        licence=text_or_none(metadata.get("general.license")),
        num_parameters=sum(entry.size for entry in entries),
        context_length=number_or_none(metadata.get(f"{architecture}.context_length")),
        vocab_size=number_or_none(metadata.get(f"{architecture}.vocab_size"))
        or _length(metadata.get("tokenizer.ggml.tokens")),
        trunk=trunk,
        head=path if head is None and brings_head else head,
        num_mtp_tensors=num_mtp_tensors,
        kinds=kinds_of(entries, lambda entry: held_bytes(entry, packed=packed), READABLE),
        need=gguf_memory(metadata, entries, head, packed=packed),
        no_head_reason=_no_head_reason(architecture),
    )


def _no_head_reason(architecture: str | None) -> str | None:
    """Why there is no head where none is found, but for a trunk that one can be trained for."""
    if architecture in PAIRWISE:
        return None
    if architecture in ARCHITECTURES:
        return "the file brings no MTP head along, so it decodes plainly."
    return unknown_architecture(architecture)


def gguf_memory(
    metadata: Mapping[str, object], entries: list[TensorEntry], head: Path | None, *, packed: bool
) -> MemoryNeed:
    """What a GGUF file with this metadata and these tensors takes, together with a head's file."""

    def size(key: str) -> int | None:
        return number_or_none(metadata.get(f"{metadata.get('general.architecture')}.{key}"))

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


def _num_mtp(entries: list[TensorEntry]) -> int:
    return sum(_MTP_NAME.search(entry.name) is not None for entry in entries)


def _length(value: object) -> int:
    return len(value) if isinstance(value, list) else 0


def _ratio(whole: int | None, parts: int | None) -> int | None:
    return whole // parts if whole and parts else None
