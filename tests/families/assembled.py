"""Tiny models of a family with an MTP head assembled in torch from the published formula.

The trunk is a model of transformers with random weights. The block of a module of the head is a
model of the same kind with one layer, its embedding and its final norm left out; norms, projection
and output head stand around it. The checkpoint that is written has the names that the family's
publishers use, spelt out in the tests and not taken from the product's data.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import torch

VOCAB_SIZE = 96
TRUNK = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
}
EXPERTS = {
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}


@dataclass(frozen=True, slots=True)
class Layout:
    """Published names: templates over `{i}`, the module, and `{layer}`, the layer it would be."""

    embedding_norm: str
    hidden_norm: str
    projection: str
    output_norm: str | None
    block: str
    output: str | None = None
    copies: tuple[str, str] | None = None  # of the trunk's embedding and output head
    block_renames: tuple[tuple[str, str], ...] = ()
    block_dropped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Formula:
    """How the parts of a module are put together."""

    hidden_first: bool = False
    before_norm: bool = False  # the trunk's hidden state that feeds it
    recycles_before_norm: bool = False
    zero_centred: bool = False
    chained: bool = True
    eps: float = 1e-6


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a family's tiny checkpoint is made of.

    model: the class of transformers, or what makes a model like its from a configuration.
    config: its configuration. block: what is different in the one-layer model of a module.
    saved: what is different in config.json. dropped: tensors that transformers writes and the
    publishers do not have. renamed: parts of names that they call otherwise. zeroed, block_zeroed:
    weights that are zero, in all models or in the blocks. block_prefix: how transformers calls a
    block's tensors.
    """

    model: str | Callable[[Mapping[str, Any]], Any]
    config: Mapping[str, Any]
    layout: Layout
    formula: Formula = Formula()
    block: Mapping[str, Any] = field(default_factory=dict)
    saved: Mapping[str, Any] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    zeroed: tuple[str, ...] = ()
    block_zeroed: tuple[str, ...] = ()
    num_modules: int = 1
    final_norm: str = "model.norm"
    block_prefix: str = "model.layers.0."


@dataclass(frozen=True, slots=True)
class TorchModule:
    """One module of a head: what it is made of, in torch."""

    embedding_norm: torch.Tensor
    hidden_norm: torch.Tensor
    projection: torch.Tensor  # [D, 2 D]
    output_norm: torch.Tensor | None
    output: torch.Tensor | None
    block: Any  # a model of one layer


@dataclass(frozen=True, slots=True)
class Rows:
    """What a module made of T rows: logits [T, V] and what it hands on [T, D], float32."""

    logits: np.ndarray
    recycled: np.ndarray


@dataclass(frozen=True, slots=True)
class Assembled:
    """A trunk and its head."""

    recipe: Recipe
    trunk: Any
    modules: tuple[TorchModule, ...]

    def trunk_rows(self, token_ids: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Hidden states before and after the final norm [T, D], and logits [T, V]."""
        with torch.no_grad(), Watched(_part(self.trunk, self.recipe.final_norm)) as seen:
            logits = self.trunk(torch.tensor([token_ids])).logits[0]
        return seen[0][0].numpy(), seen[1][0].numpy(), logits.numpy()

    def head_rows(
        self, module: int, token_ids: list[int], hidden: np.ndarray, start: int = 0
    ) -> Rows:
        """Rows of one module from nothing: hidden [T, D] and the token that goes with each."""
        parts, formula = self.modules[module], self.recipe.formula
        with torch.no_grad():
            embedded = self.trunk.get_input_embeddings()(torch.tensor([token_ids]))
            pair = [
                normed(embedded, parts.embedding_norm, formula),
                normed(torch.tensor(hidden)[None], parts.hidden_norm, formula),
            ]
            joined = torch.cat(pair[::-1] if formula.hidden_first else pair, dim=-1)
            positions = torch.arange(start, start + len(token_ids))[None]
            with Watched(_part(parts.block, self.recipe.final_norm)) as seen:
                parts.block.model(inputs_embeds=joined @ parts.projection.T, position_ids=positions)
            g = seen[0]
            shared = _part(self.trunk, self.recipe.final_norm)
            own = parts.output_norm
            out = shared(g) if own is None else normed(g, own, formula)
            head = parts.output if parts.output is not None else self.trunk.lm_head.weight
            recycled = g if formula.recycles_before_norm else out
            return Rows((out @ head.T)[0].numpy(), recycled[0].numpy())


def normed(x: torch.Tensor, weight: torch.Tensor, formula: Formula) -> torch.Tensor:
    """Root mean square norm (arXiv 1910.07467)."""
    scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + formula.eps)
    return x * scale * (1 + weight if formula.zero_centred else weight)


class Watched:
    """Input and output of a torch module during a pass."""

    def __init__(self, module: Any) -> None:
        self.seen: list[torch.Tensor] = []
        self.hook = module.register_forward_hook(
            lambda _, inputs, output: self.seen.extend([inputs[0], output])
        )

    def __enter__(self) -> list[torch.Tensor]:
        return self.seen

    def __exit__(self, *_: object) -> None:
        self.hook.remove()


def _part(model: Any, path: str) -> Any:
    for name in path.split("."):
        model = getattr(model, name)
    return model


def assemble(recipe: Recipe) -> Assembled:
    """Random weights; the same recipe gives the same ones."""
    torch.manual_seed(11)
    trunk = randomised(_built(recipe, recipe.config), recipe.zeroed)
    one_layer = {**recipe.config, "num_hidden_layers": 1, **recipe.block}
    modules = []
    width = recipe.config["hidden_size"]
    centre = 0.0 if recipe.formula.zero_centred else 1.0
    for _ in range(recipe.num_modules):
        norms = [centre + 0.2 * torch.randn(width) for _ in range(3)]
        output = torch.randn(VOCAB_SIZE, width) * width**-0.5
        modules.append(
            TorchModule(
                embedding_norm=norms[0],
                hidden_norm=norms[1],
                projection=torch.randn(width, 2 * width) * (2 * width) ** -0.5,
                output_norm=None if recipe.layout.output_norm is None else norms[2],
                output=None if recipe.layout.output is None else output,
                block=randomised(_built(recipe, one_layer), recipe.zeroed + recipe.block_zeroed),
            )
        )
    return Assembled(recipe, trunk, tuple(modules))


def _built(recipe: Recipe, config: Mapping[str, Any]) -> Any:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if not isinstance(recipe.model, str):
        return recipe.model(config)
    kind = getattr(transformers, recipe.model)
    return kind(kind.config_class(**config))


def randomised(model: Any, zeroed: tuple[str, ...]) -> Any:
    """A model of transformers with weights under which every part matters."""
    model = model.eval().float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(0.2 * torch.randn_like(parameter))
        for name, buffer in model.named_buffers():
            if name.endswith("bias"):
                buffer.normal_(0, 0.1)
        for name, tensor in model.state_dict().items():
            if name.endswith(zeroed):
                tensor.zero_()
    return model


def write_checkpoint(assembled: Assembled, folder: Path) -> Path:
    """The folder as its publishers would have it: one file, head included, and config.json."""
    recipe = assembled.recipe
    assembled.trunk.save_pretrained(folder)
    tensors = {renamed(name, recipe.renamed): tensor for name, tensor in _tensors(folder)}
    for index, module in enumerate(assembled.modules):
        tensors |= _module_tensors(assembled, index, module, folder / f"block-{index}")
    kept = {n: t for n, t in tensors.items() if not any(part in n for part in recipe.dropped)}
    mx.save_safetensors(str(folder / "model.safetensors"), kept, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text()) | dict(recipe.saved)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def renamed(name: str, changes: tuple[tuple[str, str], ...]) -> str:
    """A name with parts of it exchanged."""
    for before, after in changes:
        name = name.replace(before, after)
    return name


def _tensors(folder: Path) -> Iterator[tuple[str, mx.array]]:
    for file in sorted(folder.glob("*.safetensors")):
        yield from mx.load(str(file)).items()  # type: ignore[union-attr]  # a dict, here


def _module_tensors(
    assembled: Assembled, index: int, module: TorchModule, scratch: Path
) -> dict[str, mx.array]:
    recipe, layout = assembled.recipe, assembled.recipe.layout
    places = {"i": index, "layer": assembled.trunk.config.num_hidden_layers + index}
    own = {
        layout.embedding_norm: module.embedding_norm,
        layout.hidden_norm: module.hidden_norm,
        layout.projection: module.projection,
        layout.output_norm: module.output_norm,
        layout.output: module.output,
    }
    if layout.copies is not None:
        own[layout.copies[0]] = assembled.trunk.get_input_embeddings().weight
        own[layout.copies[1]] = assembled.trunk.lm_head.weight
    tensors = {
        name.format(**places) + ".weight": mx.array(tensor.detach().numpy())
        for name, tensor in own.items()
        if name is not None and tensor is not None
    }
    module.block.save_pretrained(scratch)
    for name, tensor in _tensors(scratch):
        rest = name.removeprefix(recipe.block_prefix)
        if rest != name and not any(part in rest for part in layout.block_dropped):
            published = renamed(rest, layout.block_renames)
            tensors[layout.block.format(**places) + published] = tensor
    return tensors
