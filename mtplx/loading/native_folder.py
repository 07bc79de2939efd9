"""A folder of safetensors as a target and, where it brings one along, its MTP head.

Opening is lazy and apart from filling, so that what only looks at a checkpoint, or copies it, reads
no weights.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from mtplx.errors import CheckpointError
from mtplx.loading.expanded_tensors import Manner, fp8_block, plain_tensors
from mtplx.loading.find_head import unusable_head
from mtplx.loading.native_head_files import SplitFolder, StoredHead, split_folder
from mtplx.loading.sharded import lead_or_follow
from mtplx.loading.stored_tensors import open_folder
from mtplx.loading.tied import tied_by_weights
from mtplx.models.drafter import Head
from mtplx.models.family import BlockPlan, Config, Tensors, text_config
from mtplx.models.mla import absorb_short_blocks
from mtplx.models.mlx_lm_model import adapted, dense_model, sanitised
from mtplx.models.mlx_lm_target import MlxLmTarget, mlx_lm_target
from mtplx.models.native_head import (
    HeadParts,
    NativeHead,
    build_block,
    empty_tree,
    filled_head,
    head_parts,
)
from mtplx.models.packed import PackedWeights, held_arrays
from mtplx.models.sharded import shard
from mtplx.speculation import Target


@dataclass(frozen=True, slots=True)
class OpenedFolder:
    """A model and its tensors, none of them read. Either half may be filled without the other.

    split: what was found, without the trunk's tensors. model: mlx_lm's Model, all dense.
    weights: by the names of its module tree, the trunk's alone.
    config: config.json in mlx-lm's words, with what the weights say of ties.
    packed: matrices that stay as they are, which some of the weights stand in for.
    """

    path: Path
    split: SplitFolder
    config: Config
    model: Any
    weights: Tensors
    packed: PackedWeights

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
    """A folder's target, and its head or why there is none."""

    target: MlxLmTarget
    head: NativeHeadFile | None
    no_head_reason: str | None


def open_native_folder(path: Path, manner: Manner | None = None) -> OpenedFolder:
    """The model that config.json describes, its tensors and those of its head, lazy.

    manner: what becomes of matrices that are packed in a foreign manner; by default all are
        expanded.
    Raises CheckpointError for a folder with a part missing and for one that mlx-lm cannot read.
    """
    split = split_folder(open_folder(path))
    manner = replace(manner or usual_manner(), block=fp8_block(split.config))
    config, trunk = tied_by_weights(
        adapted(split.config, split.family), plain_tensors(split.trunk, manner)
    )
    # Taken out, so that nothing else holds on to arrays of which others are made.
    split = replace(split, trunk={})
    if split.family is not None:
        trunk = split.family.prepare(trunk, text_config(config))
    try:
        model = dense_model(config)
        weights = _unpacked(sanitised(model, trunk), config)
    except (ValueError, OSError, KeyError, RuntimeError, TypeError, AttributeError) as error:
        raise CheckpointError(f"mlx-lm cannot load {path}: {error}") from error
    packed = manner.packed or PackedWeights()
    return OpenedFolder(path, split, config, model, weights, packed)


def usual_manner(*, packed: bool = False) -> Manner:
    """What becomes of foreign packed matrices on this machine. packed: as they are on a GPU."""
    dtype = mx.bfloat16 if mx.metal.is_available() else mx.float32
    return Manner(dtype, PackedWeights() if packed else None)


def opened_head(opened: OpenedFolder) -> HeadParts | None:
    """The folder's head before it is filled, lazy; None where it has none. Raises CheckpointError
    and its kinds for one that cannot be used."""
    stored, family = opened.split.head, opened.split.family
    if stored is None or family is None:
        return None
    config = text_config(opened.config)
    block = fp8_block(opened.split.config)
    plain = plain_tensors(stored.tensors, replace(usual_manner(), block=block))
    stored = replace(stored, tensors=plain)
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
        manner = usual_manner(packed=mx.metal.is_available() and group is None)
    opened = open_native_folder(path, manner)
    try:
        opened.packed.fill(opened.model, opened.weights, opened.config)
        if group is not None:
            shard(opened.model, group, opened.name)
        mx.eval(opened.model.parameters(), held_arrays(opened.model))
    except CheckpointError as error:
        raise type(error)(f"{opened.name}: {error}") from error
    except (ValueError, RuntimeError) as error:
        raise CheckpointError(f"mlx-lm cannot load {path}: {error}") from error
    target = mlx_lm_target(opened.model, opened.config, opened.name)
    if group is not None:
        target = lead_or_follow(target, group)
    head, reason = None, opened.split.no_head_reason
    try:
        head = _head(opened, target)
    except CheckpointError as error:
        reason = unusable_head(error)
    if slow := absorb_short_blocks(opened.model):
        head, reason = None, f"{slow[0]} is slow at blocks of tokens, so it decodes plainly."
    return FolderModel(target, head, reason)


def _head(opened: OpenedFolder, target: MlxLmTarget) -> NativeHeadFile | None:
    stored, parts = opened.split.head, opened_head(opened)
    if parts is None or stored is None:
        return None
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
    from mlx_lm.utils import _transform_awq_weights

    unpacked: Tensors = _transform_awq_weights(weights, stated)[0]
    return unpacked
