"""What a folder of safetensors is, from its headers and config.json.

The model is built with tensors that are never read: their shapes say what memory it takes, and a
pass that is never computed what its state does.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from mtplx.errors import CheckpointError
from mtplx.files import accessing
from mtplx.kernels.source import Kernel
from mtplx.loading.description import (
    Description,
    NativeHeadFacts,
    kinds_of,
    number_or_none,
    text_or_none,
)
from mtplx.loading.expanded_tensors import MLX_LM_ERRORS, Manner
from mtplx.loading.find_head import find_head, unusable_head
from mtplx.loading.fingerprint import fingerprint
from mtplx.loading.held_tensors import held_by_name, taken_bytes
from mtplx.loading.memory import MemoryNeed, folder_need
from mtplx.loading.native_folder import (
    OpenedFolder,
    not_of_mlx_lm,
    open_native_folder,
    opened_head,
    usual_manner,
)
from mtplx.loading.stored_tensors import StoredFolder, open_folder, read_config
from mtplx.loading.tensor_list import (
    TensorEntry,
    num_weights,
    safetensors_entries,
    trained_head_size,
)
from mtplx.models.cache_need import CacheNeed, caches_need, model_need
from mtplx.models.family import text_config, text_name
from mtplx.models.mlx_lm_model import fill
from mtplx.models.module_matrix import matrix_of
from mtplx.models.native_head import HeadParts, named_arrays
from mtplx.models.packed import held_arrays, num_packed_weights
from mtplx.models.quantisation import stated_packings
from mtplx.models.shortlist import num_frequent

_MTP_NAME = re.compile(r"(^|\.)(mtp|mtp_layers|nextn)\.")  # of heads of families not known here


@dataclass(frozen=True, slots=True)
class _Built:
    """A folder's model and head, with tensors that have not been read.

    head: None where there is none that could be drafted with, for this reason.
    """

    folder: StoredFolder
    opened: OpenedFolder
    head: HeadParts | None
    no_head_reason: str | None
    num_parameters: int
    weights_bytes: int
    head_bytes: int
    state: CacheNeed


def describe_folder(path: Path, *, packed: bool = False) -> Description:
    """The checkpoint in a folder. packed: as on a GPU.

    Raises CheckpointError for files that cannot be read; what else keeps it from being loaded is no
    error here.
    """
    config = read_config(path)
    sizes = text_config(config)
    entries = safetensors_entries(path)
    built, failure = None, None
    try:
        built = _built(path, usual_manner(packed=packed))
    except CheckpointError as error:
        failure = str(error)
    head = None if built is None else _head_facts(built)
    split, trunk = None if built is None else built.opened.split, fingerprint(path)
    held = None if built is None else _held(built)
    trained = find_head(path, trunk) if head is None else None
    return Description(
        path=path,
        container="safetensors",
        architecture=text_or_none(config.get("model_type")),
        name=text_or_none(config.get("_name_or_path")),
        licence=_licence(path),
        num_parameters=_counted(entries, config) if built is None else built.num_parameters,
        context_length=number_or_none(sizes.get("max_position_embeddings")),
        vocab_size=number_or_none(sizes.get("vocab_size")),
        trunk=trunk,
        head=trained,
        num_mtp_tensors=_num_head_tensors(entries, built),
        kinds=kinds_of(
            entries, lambda e: e.num_bytes if held is None else held.get(e.name, 0), None
        ),
        need=_need(entries, built, trained),
        family=None if split is None or split.family is None else split.family.name,
        native_head=head,
        no_head_reason=failure if built is None else built.no_head_reason,
        expanded=None if built is None else _expanded(built),
    )


def _expanded(built: _Built) -> str | None:
    """Which packed matrices of trunk and head cannot stay as they are."""
    told = (built.opened.note, None if built.head is None else built.head.note)
    return " ".join(line for line in told if line) or None


def folder_memory(path: Path, *, packed: bool = False, split: bool = False) -> MemoryNeed:
    """What a folder of safetensors takes. packed: as on a GPU. split: over several machines.

    Raises CheckpointError and FileAccessError.
    """
    with accessing("read", path):
        return _need([], _built(path, usual_manner(packed=packed, split=split)))


def _built(path: Path, manner: Manner) -> _Built:
    folder = open_folder(path)
    opened = open_native_folder(path, replace(manner, reads=False, maker=_shapes_alone), folder)
    # Before a matrix that MLX packs takes a dense one's place.
    num_parameters = _num_parameters(opened.model)
    fill(opened.model, opened.weights, opened.config)
    try:
        state = model_need(opened.model)
    except MLX_LM_ERRORS as error:
        raise not_of_mlx_lm(path, error) from error
    built = _Built(
        folder=folder,
        opened=opened,
        head=None,
        no_head_reason=opened.split.no_head_reason,
        num_parameters=num_parameters,
        weights_bytes=_num_bytes(opened.model),
        head_bytes=0,
        state=state,
    )
    try:
        return _with_head(built)
    except CheckpointError as error:  # which only costs the drafting
        return replace(built, no_head_reason=unusable_head(error))


def _with_head(built: _Built) -> _Built:
    """The same with the head that the folder has, if it has one. Raises CheckpointError."""
    head = opened_head(built.opened)
    if head is None:
        return built
    num_parameters = built.num_parameters + _num_parameters(head.tree)
    fill(head.tree, head.weights, built.opened.config)
    return replace(
        built,
        head=head,
        num_parameters=num_parameters,
        head_bytes=_num_bytes(head.tree),
        state=built.state + _head_state(built.opened, head),
    )


def _held(built: _Built) -> dict[str, int]:
    """What each stored tensor takes in memory, by its name."""
    opened, head, own = built.opened, built.head, built.opened.split.head
    beside = [file for file in built.folder.beside if own is not None and file.path in own.paths]
    files = (*built.folder.files, *beside)
    stored = {name: array for file in files for name, array in file.tensors.items()}
    taken, matrices = taken_bytes(opened.weights, opened.model), dict(opened.matrices)
    if head is not None:
        taken |= taken_bytes(head.weights, head.tree)
        for name in (name.removesuffix("_packed") for name in stored):
            usual = head.family.usual_name(text_name(name))
            matrices |= {name: head.matrices[usual]} if usual in head.matrices else {}
    return held_by_name(stored, matrices, taken, built.weights_bytes + built.head_bytes)


def _num_parameters(module: Any) -> int:
    num_dense = sum(array.size for _, array in named_arrays(module))
    return num_dense + num_packed_weights(module)


def _num_bytes(module: Any) -> int:
    """Of a module that has been filled, and of what it has packed."""
    dense = [array for _, array in named_arrays(module)]
    return sum(array.nbytes for array in [*dense, *held_arrays(module)])


def _shapes_alone(*told: object) -> Kernel:
    """Makes kernels that compute nothing: who looks for shapes needs no GPU."""

    def kernel(
        *, output_shapes: Sequence[Sequence[int]], output_dtypes: Sequence[mx.Dtype], **call: object
    ) -> list[mx.array]:
        pairs = zip(output_shapes, output_dtypes, strict=True)
        return [mx.zeros(shape, dtype) for shape, dtype in pairs]

    return kernel


def _head_state(opened: OpenedFolder, head: HeadParts) -> CacheNeed:
    """Of every module of the head, whose rows are of the dtype that its norms give."""
    width = text_config(opened.config)["hidden_size"]
    total = CacheNeed()
    for part, block in zip(head.tree.parts, head.blocks, strict=True):
        row = mx.zeros((1, 1, width), part.hidden_norm.weight.dtype)
        caches = block.make_cache()
        block.run(row, caches)
        total += caches_need(caches)
    return total


def _need(
    entries: list[TensorEntry], built: _Built | None, trained: Path | None = None
) -> MemoryNeed:
    """By the model, or by the files alone where it cannot be built. trained: a head's file."""
    if built is None:
        return folder_need(sum(entry.num_bytes for entry in entries))
    head_bytes, num_rows, _ = trained_head_size(trained)
    width = int(text_config(built.opened.config)["hidden_size"]) if trained else 0
    return folder_need(
        built.weights_bytes,
        head_bytes=built.head_bytes + head_bytes,
        shortlist_bytes=_shortlist_bytes(built) + 4 * num_rows * width,
        state=built.state,
    )


def _shortlist_bytes(built: _Built) -> int:
    """Of the rows of the output layer that a head drafts from, if it uses the trunk's."""
    if built.head is None or built.head.family.names.output is not None:
        return 0
    modules = dict(built.opened.model.named_modules())
    found = [
        module
        for kind in ("lm_head", "embed_tokens", "embeddings")
        for name, module in modules.items()
        if name.rpartition(".")[2] == kind
    ]
    if not found:
        return 0
    matrix = matrix_of(found[0])
    row = sum(array.nbytes for array in matrix.take(mx.array([0])).arrays())
    return row * num_frequent(matrix.shape[0])


def _head_facts(built: _Built) -> NativeHeadFacts | None:
    stored = built.opened.split.head
    if stored is None or built.head is None:
        return None
    return NativeHeadFacts(
        num_modules=stored.num_modules,
        hidden_stage=stored.family.hidden_stage,
        files=stored.paths,
        embedded=stored.embedded,
        num_bytes=built.head_bytes,
        note=stored.note,
    )


def _num_head_tensors(entries: list[TensorEntry], built: _Built | None) -> int:
    if built is not None and built.opened.split.head is not None:
        return len(built.opened.split.head.tensors)
    return sum(_MTP_NAME.search(entry.name) is not None for entry in entries)


def _counted(entries: list[TensorEntry], config: Mapping[str, Any]) -> int | None:
    try:
        return num_weights(entries, stated_packings(config))
    except CheckpointError:  # packed in a way that is not known, or that several may be
        return None


def _licence(path: Path) -> str | None:
    """The licence that a model card states at its beginning."""
    card = path / "README.md"
    if not card.is_file():
        return None
    front = card.read_text("utf-8", "replace").split("---")
    match = re.search(r"^license:\s*(\S+)", front[1], re.MULTILINE) if len(front) > 2 else None
    return match[1] if match else None
