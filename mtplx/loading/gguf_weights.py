"""A GGUF file's tensors under a checkpoint's names: of its trunk, and of the head it may have."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from mtplx.kernels.packing import PART
from mtplx.loading import gguf_qwen35
from mtplx.loading.gguf_layouts import Layout
from mtplx.loading.gguf_tensors import GgufTensors, stays_on_gpu
from mtplx.models.packed_matrix import PackedPart
from mtplx.models.packed_weights import PackedWeights


@dataclass(slots=True)
class Named:
    """Tensors by name. Where a matrix stays packed, its name stands for a matrix of zeros that is
    never computed, and `packed` has what is meant. num_bytes: in the file."""

    all: dict[str, mx.array] = field(default_factory=dict)
    packed: PackedWeights = field(default_factory=PackedWeights)
    num_bytes: int = 0

    def add(self, tensors: GgufTensors, layout: Layout, name: str, leaf: str, to: str) -> None:
        """Take in the tensor `name` as `to`. leaf: its name without the layer."""
        self.num_bytes += tensors.by_name[name].data.nbytes
        if tensors.packed and _stays_packed(tensors, layout, name, leaf):
            matrix = tensors.kernel_matrix(name, layout.row_orders.get(leaf))
            if leaf in layout.shared:
                self.all[to] = self.packed.row_numbers(matrix, name)
                return
            part = PackedPart(matrix, layout.column_orders.get(leaf))
            self.all[to] = self.packed.stand_in(part, name)
        else:
            self.all[to] = _dense(tensors, layout, name, leaf)


def trunk_weights(tensors: GgufTensors, layout: Layout) -> Named:
    """The trunk's tensors under mlx-lm's names."""
    named = Named()
    for name in list(tensors.by_name):
        layer, leaf = _place(name)
        if layer is None and name in layout.ends:
            named.add(tensors, layout, name, leaf, layout.ends[name])
        elif layer is not None and layer < layout.num_layers and leaf in layout.names:
            to = f"model.layers.{layer}.{layout.names[leaf]}"
            named.add(tensors, layout, name, leaf, to)
    return named


def head_weights(tensors: GgufTensors, layout: Layout) -> tuple[Named, int]:
    """The head's tensors under the names of its family, and how many modules they are."""
    named, modules = Named(), set()
    for name in list(tensors.by_name):
        layer, leaf = _place(name)
        if layer is None or layer < layout.num_layers:
            continue
        modules.add(layer)
        if leaf in gguf_qwen35.HEAD_COPIES:
            tensors.unread.discard(name)
        elif leaf in gguf_qwen35.HEAD:
            named.add(tensors, layout, name, leaf, gguf_qwen35.HEAD[leaf])
        elif leaf in layout.names:
            to = f"mtp.layers.{layer - layout.num_layers}.{layout.names[leaf]}"
            named.add(tensors, layout, name, leaf, to)
    return named, len(modules)


def _stays_packed(tensors: GgufTensors, layout: Layout, name: str, leaf: str) -> bool:
    tensor = tensors.by_name[name]
    if len(tensor.shape) not in (2, 3) or leaf in layout.transforms:
        return False
    # Whose rows are joined with another's has to be of its kind, and float32 is one of ours, too.
    together = leaf in layout.shared and tensor.shape[-1] % PART == 0
    return together or stays_on_gpu(tensor.type, tensor.shape)


def _dense(tensors: GgufTensors, layout: Layout, name: str, leaf: str) -> mx.array:
    """A tensor as mlx-lm has it, times the factor that a file may have beside it."""
    array, factor = tensors.array(name), tensors.factor(name)
    if factor is not None:
        array = array * factor
    if leaf in layout.row_orders:
        array = array[layout.row_orders[leaf]]
    if leaf in layout.column_orders:
        array = array[:, mx.argsort(layout.column_orders[leaf])]
    transform = layout.transforms.get(leaf)
    return array if transform is None else transform(array)


def _place(name: str) -> tuple[int | None, str]:
    """The layer that a tensor is of, and what its name says behind it."""
    parts = name.split(".", 2)
    if len(parts) == 3 and parts[0] == "blk" and parts[1].isdigit():
        return int(parts[1]), parts[2]
    return None, name


def tied(config: Mapping[str, Any], is_tied: bool) -> dict[str, Any]:
    """A configuration that says whether the output head is the embedding."""
    text = config.get("text_config")
    if text is None:
        return {**config, "tie_word_embeddings": is_tied}
    return {**config, "text_config": {**text, "tie_word_embeddings": is_tied}}
