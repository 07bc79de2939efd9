"""A GGUF model ready to decode: its trunk, and the MTP head that it may bring along."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mtplx.errors import CheckpointError, HeadError, UnsupportedTensorError
from mtplx.kernels.source import Maker, metal
from mtplx.kernels.tiling import Tiling
from mtplx.loading import gguf_layouts, gguf_qwen35
from mtplx.loading.find_head import unusable_head
from mtplx.loading.gguf_file import GgufFile
from mtplx.loading.gguf_known import ARCHITECTURES, unknown_architecture
from mtplx.loading.gguf_layouts import Fields, Layout
from mtplx.loading.gguf_llama import PAIRWISE, llama_dims, llama_target, refuse_left_over
from mtplx.loading.gguf_tensors import GgufTensors, gguf_tensors
from mtplx.loading.gguf_weights import Named, head_weights, tied, trunk_weights
from mtplx.models.llama import LlamaTarget
from mtplx.models.packed import held_arrays

if TYPE_CHECKING:
    from mtplx.loading.native_folder import NativeHeadFile
    from mtplx.models.mlx_lm_target import MlxLmTarget
    from mtplx.models.native_head import NativeHead

LAYOUTS: Mapping[str, Callable[[gguf_layouts.Metadata], Layout]] = {
    "gemma3": gguf_layouts.gemma3,
    "lfm2": gguf_layouts.lfm2,
    "qwen35": gguf_qwen35.qwen35,
    "qwen35moe": gguf_qwen35.qwen35,
    "qwen3next": gguf_qwen35.qwen3next,
}


@dataclass(frozen=True, slots=True)
class GgufModel:
    """A file's target, and the head that it brings along, or why there is none in one line."""

    target: "LlamaTarget | MlxLmTarget"
    head: "NativeHeadFile | None" = None
    no_head_reason: str | None = None


def gguf_context_length(file: GgufFile) -> int:
    """How many tokens the model was made for.

    Raises CheckpointError, and UnsupportedTensorError for an architecture that is not known here.
    """
    _architecture(file)
    return int(Fields(file.metadata).number("context_length"))


def gguf_model(
    file: GgufFile,
    context_length: int,
    *,
    packed: bool,
    kv_dtype: mx.Dtype = mx.float32,
    head_file: GgufFile | None = None,
    maker: Maker = metal,
    tiling: Tiling | None = None,
) -> GgufModel:
    """The model of an open file, which may be given less context than it was made for.

    packed: as on a GPU. kv_dtype: what keys and values are kept in. head_file: another file that
    holds the head. maker: who runs our kernels. tiling: which tiles they take.
    Raises CheckpointError for a tensor that is missing, misshapen or left over, HeadError for a
    head file that does not fit, and UnsupportedTensorError for what is not known here.
    """
    arch = _architecture(file)
    open_tensors = partial(gguf_tensors, packed=packed, maker=maker, tiling=tiling)
    tensors = open_tensors(file)
    if arch in PAIRWISE:
        dims = replace(llama_dims(file.metadata), context_length=context_length)
        target = replace(llama_target(tensors, dims, arch), kv_dtype=kv_dtype)
        mx.eval(target.arrays())
        return GgufModel(target)
    beside = None if head_file is None else open_tensors(head_file)
    layout = LAYOUTS[arch](file.metadata)
    return _through_mlx_lm(file, layout, tensors, context_length, kv_dtype, beside)


def _architecture(file: GgufFile) -> str:
    """Which of ARCHITECTURES a file has. Raises UnsupportedTensorError for another one."""
    arch = str(file.metadata.get("general.architecture"))
    if arch not in ARCHITECTURES:
        raise UnsupportedTensorError(unknown_architecture(arch))
    return arch


def _through_mlx_lm(
    file: GgufFile,
    layout: Layout,
    tensors: GgufTensors,
    context_length: int,
    kv_dtype: mx.Dtype,
    beside: GgufTensors | None,
) -> GgufModel:
    from mtplx.loading.native_folder import NativeHeadFile
    from mtplx.models.kept_attention import attends_as_kept
    from mtplx.models.mlx_lm_model import dense_model, sanitised
    from mtplx.models.mlx_lm_target import mlx_lm_target

    config = tied(layout.config, "output.weight" not in tensors.by_name)
    own = trunk_weights(tensors, layout)
    if config["model_type"] == "qwen3_next":
        gguf_qwen35.joined_projections(own.all, config)
    head, num_modules = head_weights(tensors if beside is None else beside, layout)
    if beside is not None and not head.all:
        raise HeadError(f"The file that was given as head of {file.path} holds none for it.")
    refuse_left_over(tensors)
    model = dense_model(config)
    own.packed.fill(model, sanitised(model, own.all), config)
    attends_as_kept(model)
    target = mlx_lm_target(model, config, str(file.path))
    target = replace(target, context_length=context_length, kv_dtype=kv_dtype)
    mx.eval(model.parameters(), held_arrays(model))
    if not head.all:
        return GgufModel(target, None, "the file brings no MTP head along, so it decodes plainly.")
    try:
        found = _head(target, config, head, num_modules)
    except CheckpointError as error:
        if beside is not None:
            raise
        return GgufModel(target, None, unusable_head(error))
    return GgufModel(target, NativeHeadFile(file.path, found, head.num_bytes))


def _head(
    target: "MlxLmTarget", config: Mapping[str, Any], weights: Named, num_modules: int
) -> "NativeHead":
    from mtplx.models.families import family_of
    from mtplx.models.family import text_config
    from mtplx.models.kept_attention import attends_as_kept
    from mtplx.models.native_head import filled_head, head_parts

    family = family_of(config["model_type"])
    if family is None or num_modules != 1:
        raise HeadError(f"The file holds {num_modules} modules of an MTP head, one is known.")
    text = family.adapt_config(text_config(config))
    parts = head_parts(family, text, weights.all, num_modules)
    attends_as_kept(parts.tree)
    rest = weights.packed.put(parts.tree, parts.weights)
    return filled_head(replace(parts, weights=rest), target, config)
