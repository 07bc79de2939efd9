"""What has to be known of a family of checkpoints to run the MTP head that they bring along.

A family is data, and one file in `mtplx/models/families/`. Names are templates over the text part
of a checkpoint (`text_name`): `{i}` is the module, counted from 0, `{layer}` the layer that it
would be behind the trunk's. What tensors are there decides; the configuration is a hint.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import mlx.core as mx

from mtplx.speculation import HiddenStage, LayerCache

Config = Mapping[str, Any]
"""config.json, or the part of it that is about text"""
Tensors = dict[str, mx.array]


@dataclass(frozen=True, slots=True)
class OwnNames:
    """Templates of a module's own tensors, without their last part (`.weight`, `.scales`, ...).

    embedding_norm, hidden_norm, projection: what joins the two inputs.
    output_norm: before the output head; None where it is the trunk's final norm.
    output: an output head of the module's own; None where it is the trunk's.
    copies: tensors of the trunk that the checkpoint repeats, which are not read.
    """

    embedding_norm: str
    hidden_norm: str
    projection: str
    output_norm: str | None
    output: str | None = None
    copies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """What a family builds the block of one module for. config: of the text model, adapted."""

    family: "MtpFamily"
    config: Config
    index: int


@dataclass(frozen=True, slots=True)
class BuiltBlock:
    """The layers of one module.

    module: the mlx.nn.Module that holds their weights, all dense as it is built; packing and
        filling it must be enough for `run` to compute with them.
    run: (x [1, T, D], caches) -> [1, T, D], appending to the caches. make_cache: empty ones.
    sanitize: the checkpoint's tensors of this block, without its prefix and without 1-D norms,
        under the names of `module`'s tree.
    """

    module: Any
    run: Callable[[mx.array, list[LayerCache]], mx.array]
    make_cache: Callable[[], list[LayerCache]]
    sanitize: Callable[[Tensors], Tensors]


def _same(tensors: Tensors, config: Config) -> Tensors:
    return tensors


def _same_name(name: str) -> str:
    return name


def _same_config(config: Config) -> Config:
    return config


def _same_block(config: Config, index: int) -> Config:
    return config


@dataclass(frozen=True, slots=True)
class MtpFamily:
    """One family. `reference` and `tested` are for the table in the documentation.

    model_types: what config.json calls it, mlx-lm's own name first.
    roots: with what its tensors begin, the usual one first; others mean the same.
    block: the prefix of a module's layers. count_fields: where the configuration says how many
        modules there are, in words that may be wrong.
    concat: which half of the projection's input comes first.
    hidden_stage, recycle_stage: which side of the trunk's final norm feeds the head, and which
        side of its own output norm goes on to the next step.
    chained: module j is fed by module j - 1, and drafts go on beyond the last; otherwise every
        module is fed by the trunk, and there are as many drafts as modules.
    zero_centred: norms are stored as w and used as 1 + w. is_raw: whether tensors of the trunk
        show, by their layout, that they are stored so (True) or were converted (False); None
        where they show neither.
    adapt_config: the text part of config.json in the words that mlx-lm reads.
    block_config: of that, the configuration under which mlx-lm's layer 0 is a module's block.
    block_name: a block's tensor, without its prefix, as a layer of the trunk calls it.
    prepare: tensors in a layout that mlx-lm's `sanitize` does not know into one that it does;
        the trunk's, and a block's under the names of layer 0.
    build_block: the block, where it is not a decoder layer of mlx-lm's.
    """

    name: str
    model_types: tuple[str, ...]
    roots: tuple[str, ...]
    names: OwnNames
    block: str
    count_fields: tuple[str, ...]
    hidden_stage: HiddenStage
    recycle_stage: HiddenStage = "after_norm"
    concat: Literal["embedding_first", "hidden_first"] = "embedding_first"
    chained: bool = True
    zero_centred: bool = False
    is_raw: Callable[[Tensors], bool | None] | None = None
    eps_field: str = "rms_norm_eps"
    adapt_config: Callable[[Config], Config] = _same_config
    block_config: Callable[[Config, int], Config] = _same_block
    block_name: Callable[[str], str] = _same_name
    prepare: Callable[[Tensors, Config], Tensors] = _same
    build_block: Callable[[BlockPlan], BuiltBlock] | None = None
    reference: str = ""
    tested: str = ""

    def is_head_tensor(self, name: str, num_layers: int) -> bool:
        """Whether a tensor of the text part (`text_name`) is the head's."""
        return any(_begins_with(root, num_layers, name) for root in self.roots)

    def usual_name(self, name: str) -> str:
        """A head tensor's name with the usual root."""
        for root in self.roots[1:]:
            if "{" not in root and name.startswith(root):
                return self.roots[0] + name.removeprefix(root)
        return name


def text_config(config: Config) -> Config:
    """The part of config.json that is about text."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def text_name(name: str) -> str:
    """A tensor's name without the wrapping of a model that also sees or hears.

    `model.language_model.X` and `language_model.model.X` are `model.X`; the head and lm_head of
    such a model stand on their own.
    """
    if name.startswith("model.language_model."):
        rest = name.removeprefix("model.language_model.")
        return rest if rest.startswith(("mtp.", "lm_head.")) else f"model.{rest}"
    return name.removeprefix("language_model.")


def _begins_with(root: str, num_layers: int, name: str) -> bool:
    if "{layer}" not in root:
        return name.startswith(root)
    before, _, after = root.partition("{layer}")
    found = re.match(re.escape(before) + r"(\d+)" + re.escape(after), name)
    return found is not None and int(found[1]) >= num_layers
