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
from mtplx.loading.gguf_state import gguf_kv_dtype, gguf_state
from mtplx.loading.memory import MemoryNeed, gguf_need, held_bytes
from mtplx.loading.tensor_list import TensorEntry, gguf_entries, trained_head_size
from mtplx.models.shortlist import num_frequent

_MTP_NAME = re.compile(r"(^|\.)(mtp|mtp_layers|nextn)\.")  # heads that checkpoints bring along


def describe(path: Path, *, head: Path | None = None, packed: bool = False) -> Description:
    """The checkpoint at `path`, which `resolve` gave.

    head: an MTP head's file, in place of the one that is found. packed: as on a GPU.
    Raises CheckpointError and FileAccessError for files that cannot be read.
    """
    with accessing("read", path):
        if path.is_file():
            return _gguf(path, head, packed)
        return describe_folder(path, packed=packed)


def _gguf(path: Path, given: Path | None, packed: bool) -> Description:
    file = open_gguf(path)
    metadata = file.metadata
    entries = gguf_entries(file)
    architecture = text_or_none(metadata.get("general.architecture"))
    trunk, num_mtp_tensors = fingerprint(path), _num_mtp(entries)
    head = given or find_head(path, trunk)

    def held(entry: TensorEntry) -> int:
        return held_bytes(entry, packed=packed, grouped=architecture in PAIRWISE)

    return Description(
        path=path,
        container=f"GGUF {file.version}",
        architecture=architecture,
        name=text_or_none(metadata.get("general.name")),
        licence=text_or_none(metadata.get("general.license")),
        num_parameters=sum(entry.size for entry in entries),
        context_length=number_or_none(metadata.get(f"{architecture}.context_length")),
        vocab_size=_vocab_size(metadata),
        trunk=trunk,
        head=path if head is None and _brings_head(metadata, entries) else head,
        num_mtp_tensors=num_mtp_tensors,
        kinds=kinds_of(entries, held, READABLE),
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
    grouped = metadata.get("general.architecture") in PAIRWISE
    head_bytes, num_drafted, head_layers = trained_head_size(head)
    if _brings_head(metadata, entries) and head is None:
        num_drafted = num_frequent(_vocab_size(metadata) or 0)
    by_name = {entry.name: entry for entry in entries}
    output = by_name.get("output.weight") or by_name.get("token_embd.weight")
    row = 0 if output is None else held_bytes(output, packed=packed, grouped=grouped)
    return gguf_need(
        entries,
        packed=packed,
        grouped=grouped,
        head_bytes=head_bytes,
        shortlist_bytes=0 if output is None else num_drafted * row // output.shape[0],
        state=gguf_state(metadata, head_layers, gguf_kv_dtype(packed=packed)),
        num_texts=_length(metadata.get("tokenizer.ggml.tokens"))
        + _length(metadata.get("tokenizer.ggml.merges")),
    )


def _brings_head(metadata: Mapping[str, object], entries: list[TensorEntry]) -> bool:
    known = text_or_none(metadata.get("general.architecture")) in ARCHITECTURES
    return known and _num_mtp(entries) > 0


def _vocab_size(metadata: Mapping[str, object]) -> int | None:
    stated = metadata.get(f"{metadata.get('general.architecture')}.vocab_size")
    return number_or_none(stated) or _length(metadata.get("tokenizer.ggml.tokens"))


def _num_mtp(entries: list[TensorEntry]) -> int:
    return sum(_MTP_NAME.search(entry.name) is not None for entry in entries)


def _length(value: object) -> int:
    return len(value) if isinstance(value, list) else 0
