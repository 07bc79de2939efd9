"""A folder of safetensors as a target and, where it brings one along, its MTP head.

Opening is lazy and apart from filling, so that what only looks at a checkpoint, or copies it, reads
no weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from mtplx.errors import CheckpointError
from mtplx.kernels.tiling import Tiling
from mtplx.loading.expanded_tensors import (
    MLX_LM_ERRORS,
    Manner,
    foreign_tensors,
    fp8_block,
    placed,
    told_expanded,
)
from mtplx.loading.find_head import unusable_head
from mtplx.loading.held_tensors import matrix_bytes
from mtplx.loading.native_head_files import SplitFolder, StoredHead, split_folder
from mtplx.loading.sharded import lead_or_follow
from mtplx.loading.stored_tensors import StoredFolder, open_folder
from mtplx.loading.tied import tied_by_weights
from mtplx.models.drafter import Head
from mtplx.models.family import BlockPlan, Config, Tensors, text_config
from mtplx.models.mla import absorb_short_blocks
from mtplx.models.mlx_lm_model import adapted, dense_model, fill, sanitised
from mtplx.models.mlx_lm_target import MlxLmTarget, mlx_lm_target
from mtplx.models.native_head import (
    HeadParts,
    NativeHead,
    build_block,
    empty_tree,
    filled_head,
    head_parts,
)
from mtplx.models.packed import held_arrays
from mtplx.models.packed_weights import put_modules
from mtplx.models.sharded import shard
from mtplx.speculation import Target


@dataclass(frozen=True, slots=True)
class OpenedFolder:
    """A model and its tensors, none of them filled in. Either half may be without the other.

    split: what was found, without the trunk's tensors. model: mlx_lm's Model, with packed matrices
    in their places and all else dense.
    weights: those that are to be filled in, by the names of its module tree, the trunk's alone.
    config: config.json in mlx-lm's words, with what the weights say of ties.
    manner: what became of foreign packed matrices. note: which of them are expanded though others
    stay as they are, in one line. matrices: what those of the trunk take in memory, by name.
    """

    path: Path
    split: SplitFolder
    config: Config
    model: Any
    weights: Tensors
    manner: Manner
    note: str | None = None
    matrices: Mapping[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.path} ({self.split.config.get('model_type')})"


@dataclass(frozen=True, slots=True)
class NativeHeadFile:
    """A head that came with its trunk (load.LoadedModel.head). num_bytes: on disk."""

    path: Path
    head: NativeHead
    num_bytes: int
    note: str | None = None

    @property
    def shares_output(self) -> bool:
        """Whether its logits are made by the trunk's output layer."""
        return self.head.family.names.output is None

    @property
    def shortlist(self) -> mx.array | None:
        """Of its own it has none."""
        return None

    def on(self, target: Target) -> Head:
        """The head on its trunk."""
        assert isinstance(target, MlxLmTarget)
        return replace(self.head, target=target)


@dataclass(frozen=True, slots=True)
class FolderModel:
    """A folder's target, and its head or why there is none.

    note: which packed matrices of either are expanded, in one line.
    """

    target: MlxLmTarget
    head: NativeHeadFile | None
    no_head_reason: str | None
    note: str | None = None


def open_native_folder(
    path: Path, manner: Manner | None = None, folder: StoredFolder | None = None
) -> OpenedFolder:
    """The model that config.json describes, its tensors and those of its head, lazy.

    manner: what becomes of matrices that are packed in a foreign manner; by default all are
        expanded. folder: its files where they are open.
    Raises CheckpointError for a folder with a part missing and for one that mlx-lm cannot read.
    """
    folder = folder or open_folder(path)
    _refuse_layers(path, folder.config, sum(len(file.tensors) for file in folder.files))
    split = split_folder(folder)
    manner = replace(manner or usual_manner(), block=fp8_block(split.config))
    foreign = foreign_tensors(split.trunk, manner)
    config, used = tied_by_weights(adapted(split.config, split.family), foreign.expanded())
    foreign = foreign.without(foreign.expanded().keys() - used.keys())
    # Taken out, so that nothing else holds on to arrays of which others are made.
    split = replace(split, trunk={})
    try:
        model = dense_model(config)

        def named(tensors: Tensors) -> tuple[Any, Tensors]:
            if split.family is not None:
                tensors = split.family.prepare(tensors, text_config(config))
            return model, _unpacked(sanitised(model, tensors), config)

        placement = placed(foreign, named)
    except MLX_LM_ERRORS as error:
        raise not_of_mlx_lm(path, error) from error
    put_modules(model, placement.modules)
    note, held = told_expanded(foreign), matrix_bytes(foreign)
    return OpenedFolder(path, split, config, model, placement.rest, manner, note, held)


def not_of_mlx_lm(path: Path, error: Exception) -> CheckpointError:
    """What to say where mlx-lm's code stumbles over a folder (MLX_LM_ERRORS)."""
    told = str(error).partition("\n")[0][:300]
    return CheckpointError(
        f"mlx-lm cannot load {path} as its config.json describes it: {type(error).__name__}: {told}"
    )


def _refuse_layers(path: Path, config: Config, num_tensors: int) -> None:
    """A number of layers that would take hours to build, or none. Each has a tensor at least."""
    stated = text_config(config).get("num_hidden_layers", 0)
    if not isinstance(stated, int) or isinstance(stated, bool) or not 0 <= stated <= num_tensors:
        raise CheckpointError(
            f"{path / 'config.json'} has num_hidden_layers = {stated!r}, and the files have "
            f"{num_tensors} tensors. Fetch them again."
        )


def _refuse_no_numbers(model: Any) -> None:
    """CheckpointError, by name, for a norm, a bias or a scale that is none: one makes all logits
    none. Matrices are not looked through, which would take as long as reading them."""
    from mlx.utils import tree_flatten

    named: Any = tree_flatten(model.parameters())
    looked_at = [
        (name, mx.all(mx.isfinite(array)))
        for name, array in named
        if mx.issubdtype(array.dtype, mx.floating)
        and (array.ndim < 2 or name.endswith((".scales", ".biases")))
    ]
    mx.eval([finite for _, finite in looked_at])
    for name, finite in looked_at:
        if not finite.item():
            raise CheckpointError(f"{name} holds what is no number. Fetch the checkpoint again.")


def usual_manner(
    *, packed: bool = False, split: bool = False, tiling: Tiling | None = None
) -> Manner:
    """What becomes of foreign packed matrices on this machine.

    packed: they stay as they are, as on a GPU, unless the model is split over machines. tiling:
    which tiles kernels take.
    """
    dtype = mx.bfloat16 if mx.metal.is_available() else mx.float32
    why = "the model is split over machines" if packed and split else None
    return Manner(dtype, keep=packed and not split, why=why, tiling=tiling)


def opened_head(opened: OpenedFolder) -> HeadParts | None:
    """The folder's head before it is filled, lazy; None where it has none. Raises CheckpointError
    and its kinds for one that cannot be used."""
    stored = opened.split.head
    if stored is None:
        return None
    parts: list[HeadParts] = []

    def named(tensors: Tensors) -> tuple[Any, Tensors]:
        found = _head_parts(replace(stored, tensors=tensors), text_config(opened.config))
        parts.append(found)
        return found.tree, found.weights

    foreign = foreign_tensors(stored.tensors, opened.manner)
    placement = placed(foreign, named)
    put_modules(parts[-1].tree, placement.modules)
    note, held = told_expanded(foreign), matrix_bytes(foreign)
    return replace(parts[-1], weights=placement.rest, note=note, matrices=held)


def _head_parts(stored: StoredHead, config: Config) -> HeadParts:
    family = stored.family
    if not stored.converted:
        return head_parts(family, config, stored.as_used(), stored.num_modules)
    plans = (BlockPlan(family, config, index) for index in range(stored.num_modules))
    blocks = [build_block(plan) for plan in plans]
    weights = {name.removeprefix("mtp."): array for name, array in stored.tensors.items()}
    return HeadParts(family, empty_tree(family, config, blocks, weights), tuple(blocks), weights)


def folder_model(
    path: Path, group: mx.distributed.Group | None = None, manner: Manner | None = None
) -> FolderModel:
    """Load a folder, or with a group this rank's part of it; heads are for rank 0 alone.

    manner: what becomes of matrices that are packed in a foreign manner; by default they stay as
        they are on a GPU, unless the model is to be parted.
    Raises CheckpointError and its kinds; a head that is broken only costs the drafting.
    """
    if manner is None:
        manner = usual_manner(packed=mx.metal.is_available(), split=group is not None)
    opened = open_native_folder(path, manner)
    try:
        fill(opened.model, opened.weights, opened.config)
        if group is not None:
            shard(opened.model, group, opened.name)
        mx.eval(opened.model.parameters())
        _refuse_no_numbers(opened.model)
        for array in held_arrays(opened.model):
            mx.eval(array)  # one by one, so that little is held twice while experts are stacked
    except CheckpointError as error:
        raise type(error)(f"{opened.name}: {error}") from error
    except (ValueError, RuntimeError) as error:
        raise not_of_mlx_lm(path, error) from error
    target = mlx_lm_target(opened.model, opened.config, opened.name)
    if group is not None:
        target = lead_or_follow(target, group)
    head, reason, note = None, opened.split.no_head_reason, opened.note
    try:
        parts = opened_head(opened)
        if parts is not None:
            head = _head(opened, parts, target)
            note = " ".join(told for told in (note, parts.note) if told) or None
    except CheckpointError as error:
        reason = unusable_head(error)
    if slow := absorb_short_blocks(opened.model):
        head, reason = None, f"{slow[0]} is slow at blocks of tokens, so it decodes plainly."
    return FolderModel(target, head, reason, note)


def _head(opened: OpenedFolder, parts: HeadParts, target: MlxLmTarget) -> NativeHeadFile:
    stored = opened.split.head
    assert stored is not None
    head = filled_head(parts, target, opened.config)
    return NativeHeadFile(_where(stored, opened.path), head, stored.num_bytes, stored.note)


def _where(stored: StoredHead, folder: Path) -> Path:
    """The head's file, or the folder where it lies in several."""
    return stored.paths[0] if len(stored.paths) == 1 else folder


def _unpacked(weights: Tensors, config: Config) -> Tensors:
    """AWQ's and GPTQ's packing, which mlx-lm knows, in MLX's own; others are MLX's already."""
    stated = config.get("quantization_config") or {}
    if stated.get("quant_method") not in ("awq", "gptq") or "quantization" in config:
        return weights
    if not any(name.endswith(".qweight") for name in weights):  # whatever config.json says
        return weights
    from mlx_lm.utils import _transform_awq_weights

    unpacked: Tensors = _transform_awq_weights(weights, stated)[0]
    return unpacked
