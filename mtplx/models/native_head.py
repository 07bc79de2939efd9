"""The MTP head that a checkpoint brings along, built from what is known of its family.

Row i of a module takes a hidden state and the embedding of a later token:

    x = projection(concat[embedding_norm(embedding), hidden_norm(hidden)])
    output = output_norm(block(x))

and an output head, most often the trunk's own, makes logits of it (DeepSeek-V3, arXiv 2412.19437
section 2.2). Blocks are mlx-lm's own decoder layers, so that whatever a trunk's layers may be,
mixed experts or latent attention, packed or dense, a head's may be as well.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from mtplx.cache import AttentionCache, SinkCache
from mtplx.errors import CheckpointError, HeadError
from mtplx.models.drafter import HeadRows
from mtplx.models.family import BlockPlan, BuiltBlock, Config, MtpFamily, Tensors
from mtplx.models.mlx_lm_model import dense_model, fill, sanitised
from mtplx.models.mlx_lm_target import MlxLmTarget
from mtplx.models.packed import held_arrays
from mtplx.models.undo import layer_caches
from mtplx.speculation import HiddenStage, LayerCache

BLOCK = "block"  # what the layers are called in a module's tree


class HeadModule(nn.Module):
    """The weights of one module of a head, dense as they are made."""

    def __init__(self, plan: BlockPlan, block: BuiltBlock, *, biased: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # MLX annotates nothing here
        family, config = plan.family, plan.config
        width, eps = config["hidden_size"], config[family.eps_field]
        self.embedding_norm = nn.RMSNorm(width, eps)
        self.hidden_norm = nn.RMSNorm(width, eps)
        self.projection = nn.Linear(2 * width, width, bias=biased)
        self.block = block.module
        if family.names.output_norm is not None:
            self.output_norm = nn.RMSNorm(width, eps)
        if family.names.output is not None:
            self.output = nn.Linear(width, config["vocab_size"], bias=False)


@dataclass(frozen=True, slots=True)
class HeadParts:
    """A head that has not been filled: its modules, and tensors by the names of their trees.

    tree: an mlx.nn.Module of all modules. weights: lazy, as they are used, `parts.{i}.` first.
    note: which of its packed matrices are expanded, in one line. matrices: what foreign packed ones
    take in memory, by name.
    """

    family: MtpFamily
    tree: Any
    blocks: tuple[BuiltBlock, ...]
    weights: Tensors
    note: str | None = None
    matrices: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NativeHead:
    """A head on its trunk (drafter.Head)."""

    family: MtpFamily
    target: MlxLmTarget
    modules: tuple[Any, ...]  # HeadModule
    blocks: tuple[BuiltBlock, ...]

    @property
    def hidden_stage(self) -> HiddenStage:
        return self.family.hidden_stage

    @property
    def chained(self) -> bool:
        return self.family.chained

    def make_cache(self) -> list[list[LayerCache]]:
        dtype = self.target.kv_dtype
        return [
            [_with_sinks(layer, dtype) for layer in block.make_cache()] for block in self.blocks
        ]

    def run(
        self, module: int, token_ids: mx.array, hidden: mx.array, cache: list[LayerCache]
    ) -> HeadRows:
        x = self._joined(module, self.target.embedding.rows(token_ids), hidden)
        x = self.blocks[module].run(x[None], cache)[0]
        own = self.modules[module]
        output = own.output_norm(x) if "output_norm" in own else self.target.normalise(x)
        return HeadRows(output, output if self.family.recycle_stage == "after_norm" else x)

    def _joined(self, module: int, embedding: mx.array, hidden: mx.array) -> mx.array:
        own = self.modules[module]
        halves = [own.embedding_norm(embedding), own.hidden_norm(hidden)]
        if self.family.concat == "hidden_first":
            halves.reverse()
        joined: mx.array = own.projection(mx.concatenate(halves, axis=-1))
        return joined

    def logits(self, module: int, output: mx.array) -> mx.array:
        own = self.modules[module]
        logits: mx.array = own.output(output) if "output" in own else self.target.logits(output)
        return logits

    def arrays(self) -> list[mx.array]:
        """Every array of the head's own."""
        return [array for module in self.modules for _, array in named_arrays(module)]


def named_arrays(module: Any) -> list[tuple[str, mx.array]]:
    """The parameters of an mlx.nn.Module by the names of its tree."""
    named: Any = tree_flatten(module.parameters())
    return list(named)


def _with_sinks(layer: LayerCache, dtype: mx.Dtype | None) -> LayerCache:
    """A cache whose attention can be given a window; a layer with one of its own keeps that."""
    return SinkCache(layer.name, dtype=dtype) if type(layer) is AttentionCache else layer


def head_parts(family: MtpFamily, config: Config, tensors: Tensors, num_modules: int) -> HeadParts:
    """A head as it is built, and a checkpoint's tensors for it.

    config: of the text model, adapted. tensors: the head's, by their usual names, norms as they
    are used. Raises HeadError for a tensor that no part of the head uses.
    """
    weights: Tensors = {}
    unused = set(tensors)
    blocks = []
    for index in range(num_modules):
        block = build_block(BlockPlan(family, config, index))
        blocks.append(block)
        named, used = _module_weights(family, config, tensors, index, block)
        weights |= {f"parts.{index}.{name}": array for name, array in named.items()}
        unused -= used
    if unused:
        raise HeadError(
            f"{min(unused)} belongs to the MTP head, but no part of it uses this tensor "
            f"({len(unused)} of {len(tensors)} are left over)."
        )
    return HeadParts(family, empty_tree(family, config, blocks, weights), tuple(blocks), weights)


def empty_tree(
    family: MtpFamily, config: Config, blocks: list[BuiltBlock], names: Mapping[str, Any]
) -> Any:
    """The modules around these blocks. names: of the weights, for which parts have biases."""
    tree: Any = nn.Module()
    tree.parts = [
        HeadModule(
            BlockPlan(family, config, index),
            block,
            biased=f"parts.{index}.projection.bias" in names,
        )
        for index, block in enumerate(blocks)
    ]
    return tree


def filled_head(parts: HeadParts, target: MlxLmTarget, config: Config) -> NativeHead:
    """The head with its weights in it. config: config.json, for what it says of packed matrices.

    Raises HeadError, naming a tensor, unless every parameter is filled, nothing is left over and
    all numbers are finite: what is wrong with a head only shows as low acceptance.
    """
    try:
        fill(parts.tree, parts.weights, config)
    except CheckpointError as error:
        raise HeadError(f"{error}.") from error
    for array in held_arrays(parts.tree):
        mx.eval(array)
    for name, array in named_arrays(parts.tree):
        if mx.issubdtype(array.dtype, mx.floating) and not mx.all(mx.isfinite(array)).item():
            raise HeadError(f"{name} holds numbers that are not finite. Fetch it again.")
    return NativeHead(parts.family, target, tuple(parts.tree.parts), parts.blocks)


def _module_weights(
    family: MtpFamily, config: Config, tensors: Tensors, index: int, block: BuiltBlock
) -> tuple[Tensors, set[str]]:
    """One module's weights by the names of its tree, and the names of the tensors that they are."""
    names, weights, used = family.names, Tensors(), set[str]()
    prefix = filled_in(family.block, config, index)
    own = {
        "embedding_norm": names.embedding_norm,
        "hidden_norm": names.hidden_norm,
        "projection": names.projection,
        "output_norm": names.output_norm,
        "output": names.output,
    }
    for part, template in own.items():
        if template is not None:
            base = filled_in(template, config, index) + "."
            for name in [name for name in tensors if name.startswith(base)]:
                weights[f"{part}.{name.removeprefix(base)}"] = tensors[name]
                used.add(name)
    copies = tuple(filled_in(template, config, index) + "." for template in names.copies)
    used |= {name for name in tensors if copies and name.startswith(copies)}
    inner = [name for name in tensors if name.startswith(prefix) and name not in used]
    layer = {family.block_name(n.removeprefix(prefix)): tensors[n] for n in inner}
    for name, array in block_weights(layer, block):
        weights[f"{BLOCK}.{name}"] = array
    return weights, used | set(inner)


def block_weights(tensors: Tensors, block: BuiltBlock) -> list[tuple[str, mx.array]]:
    """A block's tensors by the names of its tree.

    Norms go around `sanitize`: some of mlx-lm's shift them, and these are as they are used.
    """
    norms = {name: array for name, array in tensors.items() if is_norm(name, array)}
    rest = {name: array for name, array in tensors.items() if name not in norms}
    return [*norms.items(), *block.sanitize(rest).items()]


def is_norm(name: str, array: mx.array) -> bool:
    """Whether a tensor is the weight of a norm."""
    return array.ndim == 1 and re.search(r"norm[^.]*\.weight$", name) is not None


def filled_in(template: str, config: Config, index: int) -> str:
    """A template's name for one module."""
    return template.format(i=index, layer=config["num_hidden_layers"] + index)


def build_block(plan: BlockPlan) -> BuiltBlock:
    """The block of one module, by the family's own function or as a decoder layer of mlx-lm's."""
    return (plan.family.build_block or decoder_block)(plan)


def decoder_block(plan: BlockPlan, window_size: int | None = None) -> BuiltBlock:
    """Layer 0 of mlx-lm's model with one layer, under the family's `block_config`.

    window_size: rows that its attention reaches back over; None is all.
    """
    from mlx_lm.models.base import create_attention_mask

    family = plan.family
    config = dict(family.block_config(plan.config, plan.index))
    config |= {"model_type": family.model_types[0], "num_hidden_layers": 1}
    model = dense_model(config)
    (layer,) = model.layers
    (path,) = (name for name, module in model.named_modules() if module is layer)

    def run(x: mx.array, cache: list[LayerCache]) -> mx.array:
        mask = create_attention_mask(x, cache[0], window_size=window_size, return_array=True)
        result: mx.array = layer(x, mask, cache[0])
        return result

    def sanitize(tensors: Tensors) -> Tensors:
        named = {f"model.layers.0.{name}": array for name, array in tensors.items()}
        found = sanitised(model, family.prepare(named, config))
        return {name.removeprefix(f"{path}."): array for name, array in found.items()}

    return BuiltBlock(layer, run, lambda: layer_caches(model), sanitize)
