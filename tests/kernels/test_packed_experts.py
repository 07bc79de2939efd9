"""Experts that lie apart are stacked as they are packed, and multiplied so."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mtplx.bench.ceiling import weight_bytes_per_token
from mtplx.kernels.packing import PackedWeight, float_weight
from mtplx.kernels.source import Maker
from mtplx.loading.describe import describe
from mtplx.loading.expanded_tensors import Manner, foreign_tensors, told_expanded
from mtplx.loading.native_folder import FolderModel, folder_model
from mtplx.models.packed import PackedExperts, held_arrays
from mtplx.models.packed_matrix import GroupedExperts, PackedMatrix, grouped_experts
from tests.packings import PACKINGS
from tests.tiny import close, random_prompt

PROMPT = random_prompt(33)  # rows enough for mlx-lm to sort them by expert
EXPERTS, INNER, WIDTH = 6, 96, 64
BOUND = 1e-3  # of the largest logit: the same sums in another order
CONFIG = {
    "model_type": "qwen3_moe",
    "hidden_size": WIDTH,
    "num_hidden_layers": 1,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": INNER,
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "vocab_size": 64,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
LAYER = "model.layers.0"
SHAPES = {
    "model.embed_tokens": (64, WIDTH),
    "lm_head": (64, WIDTH),
    f"{LAYER}.self_attn.q_proj": (64, WIDTH),
    f"{LAYER}.self_attn.k_proj": (32, WIDTH),
    f"{LAYER}.self_attn.v_proj": (32, WIDTH),
    f"{LAYER}.self_attn.o_proj": (WIDTH, 64),
    f"{LAYER}.mlp.gate": (EXPERTS, WIDTH),
}
NORMS = {
    "model.norm": WIDTH,
    f"{LAYER}.input_layernorm": WIDTH,
    f"{LAYER}.post_attention_layernorm": WIDTH,
    f"{LAYER}.self_attn.q_norm": 16,
    f"{LAYER}.self_attn.k_norm": 16,
}
PROJECTIONS = {"gate_proj": (INNER, WIDTH), "up_proj": (INNER, WIDTH), "down_proj": (WIDTH, INNER)}
Kind = Callable[[int, str], str]


@pytest.fixture(autouse=True, scope="module")
def _without_compiler() -> Iterator[None]:
    mx.disable_compile()
    yield
    mx.enable_compile()


def checkpoint(path: Path, kind: str | Kind) -> tuple[Path, Path, int]:
    """A folder with packed experts, one with the same weights dense, and the packed bytes.

    kind: a name of PACKINGS or, by expert and projection, several; "" is dense.
    """
    random = np.random.default_rng(0)
    packed, num_bytes, config = {}, 0, dict(CONFIG)
    for name, shape in SHAPES.items():
        packed[f"{name}.weight"] = random.normal(size=shape).astype(np.float32) / shape[1] ** 0.5
    for name, size in NORMS.items():
        packed[f"{name}.weight"] = random.uniform(0.5, 1.5, size).astype(np.float32)
    dense = dict(packed)
    for e in range(EXPERTS):
        for i, (projection, shape) in enumerate(PROJECTIONS.items()):
            base, seed = f"{LAYER}.mlp.experts.{e}.{projection}", 10 * e + i
            name = kind if isinstance(kind, str) else kind(e, projection)
            packing = PACKINGS[name or "FP8 of one scale"]
            parts, weights = packing.matrix(*shape, seed)
            dense[f"{base}.weight"] = weights
            packed |= {
                f"{base}.{p}": a for p, a in (parts if name else {"weight": weights}).items()
            }
            num_bytes += sum(a.nbytes for p, a in parts.items() if not p.startswith("input"))
            if packing.config:
                config["quantization_config"] = dict(packing.config)
    folders = []
    for name, tensors in (("packed", packed), ("dense", dense)):
        folder = path / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config if name == "packed" else CONFIG))
        arrays = {n: a if isinstance(a, mx.array) else mx.array(a) for n, a in tensors.items()}
        mx.save_safetensors(str(folder / "model.safetensors"), arrays)
        folders.append(folder)
    return folders[0], folders[1], num_bytes


def opened(folder: Path, maker: Maker) -> FolderModel:
    return folder_model(folder, manner=Manner(keep=True, maker=maker))


def logits_of(model: FolderModel, rows: int) -> mx.array:
    target = model.target
    hidden = target.forward(mx.array(PROMPT[:rows]), target.make_cache())
    return target.logits(target.normalise(hidden))


def experts_of(model: FolderModel) -> list[PackedExperts]:
    return [m for m in model.target.model.modules() if isinstance(m, PackedExperts)]


def stack_of(module: PackedExperts) -> PackedMatrix:
    """Its experts, which are all packed alike."""
    assert isinstance(module.matrix, PackedMatrix)
    return module.matrix


@pytest.mark.parametrize("kind", PACKINGS)
def test_experts_stay_packed(kind: str, maker: Maker, tmp_path: Path) -> None:
    """The logits of dense ones, few rows and many; what is held is what is on disk."""
    packed, dense, num_bytes = checkpoint(tmp_path, kind)
    model, expected = opened(packed, maker), folder_model(dense)
    assert model.note is None
    assert len(experts_of(model)) == len(PROJECTIONS)
    assert weight_bytes_per_token(model.target) is None  # which experts depends on the token
    for rows in (1, len(PROMPT)):
        assert close(logits_of(model, rows), logits_of(expected, rows), bound=BOUND)
    held = sum(array.nbytes for array in held_arrays(model.target.model))
    multipliers = [stack_of(m).weight.multiplier for m in experts_of(model)]
    scales = sum(a.nbytes for a in multipliers if a is not None)
    if kind == "FP8 by tiles that do not":  # a line of scales for each row
        scales = sum(4 * EXPERTS * rows for rows, _ in PROJECTIONS.values())
    assert num_bytes * 0.9 < held <= num_bytes + scales


def test_no_dense_expert_is_made_on_the_way(maker: Maker, tmp_path: Path) -> None:
    """Loading never holds as much as the experts would take in 16 bits."""
    packed, _, num_bytes = checkpoint(tmp_path, "ModelOpt NVFP4")
    opened(packed, maker)  # what is imported and made once is there now
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    model = opened(packed, maker)
    others = sum(4 * rows * width for rows, width in SHAPES.values())
    dense = 2 * EXPERTS * sum(rows * width for rows, width in PROJECTIONS.values())
    peak = mx.get_peak_memory() - before - others
    assert num_bytes < peak < dense
    assert model.note is None


def altered(model: FolderModel, change: Callable[[PackedWeight], PackedWeight]) -> FolderModel:
    for module in experts_of(model):
        stack = stack_of(module)
        module.matrix = replace(stack, weight=change(stack.weight))
    return model


def swapped(plane: mx.array | None) -> mx.array:
    """The first two experts' parts of a plane in each other's place."""
    assert plane is not None
    parts = plane.reshape(EXPERTS, -1)
    return parts[mx.array([1, 0, *range(2, EXPERTS)])].reshape(plane.shape)


MUTANTS: dict[str, Callable[[PackedWeight], PackedWeight]] = {
    "scales of another expert": lambda w: replace(w, scales=swapped(w.scales)),
    "a factor of another expert": lambda w: replace(w, multiplier=swapped(w.multiplier)),
    "no factor": lambda w: replace(w, multiplier=None),
    "one expert's factor for all": lambda w: replace(
        w, multiplier=None if w.multiplier is None else mx.full(w.multiplier.shape, w.multiplier[0])
    ),
    "codes of another expert": lambda w: replace(w, codes=swapped(w.codes)),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_scale_is_seen(mutant: str, maker: Maker, tmp_path: Path) -> None:
    """Far beyond the bound."""
    packed, dense, _ = checkpoint(tmp_path, "ModelOpt NVFP4")
    model = altered(opened(packed, maker), MUTANTS[mutant])
    assert not close(logits_of(model, 6), logits_of(folder_model(dense), 6), bound=20 * BOUND)


def test_a_factor_is_applied_after_the_sum(maker: Maker, tmp_path: Path) -> None:
    """Sums beyond half precision before they are scaled come out right in half precision."""
    packed, _, _ = checkpoint(tmp_path, "ModelOpt NVFP4")
    (gate, *_) = experts_of(opened(packed, maker))
    weight = stack_of(gate).weight
    assert weight.multiplier is not None
    assert weight.multiplier.shape == (EXPERTS * weight.shape[1],)
    x, chosen = mx.full((1, 1, 1, WIDTH), 2e3, mx.float16), mx.array([[0, 3]])
    small = PackedExperts(replace(stack_of(gate), weight=replace(weight, multiplier=None)))
    factors = weight.multiplier.reshape(EXPERTS, -1)[chosen[0]]
    exact = small(x.astype(mx.float32), chosen).reshape(2, -1) * factors
    assert not mx.isfinite(small(x, chosen)).all()
    assert close(gate(x, chosen).reshape(2, -1).astype(mx.float32), exact, bound=BOUND)


def formats(e: int, projection: str) -> str:
    """Expert 2's up projection in another format, expert 1's down projection dense."""
    if (e, projection) == (1, "down_proj"):
        return ""
    return "FP8 of one scale" if (e, projection) == (2, "up_proj") else "ModelOpt NVFP4"


def test_experts_of_several_formats_stay_packed(maker: Maker, tmp_path: Path) -> None:
    """The logits of dense ones, few rows and many; dense ones among them as they are."""
    packed, dense, num_bytes = checkpoint(tmp_path, formats)
    model, expected = opened(packed, maker), folder_model(dense)
    assert model.note is None
    assert describe(packed, packed=True).expanded is None
    grouped = [isinstance(m.matrix, GroupedExperts) for m in experts_of(model)]
    assert sorted(grouped) == [False, True, True]
    for rows in (1, 6, len(PROMPT)):
        assert close(logits_of(model, rows), logits_of(expected, rows), bound=BOUND)
    # The dense one was counted as if it were packed.
    held = sum(array.nbytes for array in held_arrays(model.target.model)) - 3 * INNER * WIDTH
    factors = 4 * EXPERTS * sum(rows for rows, _ in PROJECTIONS.values())
    assert num_bytes * 0.9 < held <= num_bytes + factors


def test_experts_of_several_formats_are_counted_as_what_they_take(
    maker: Maker, tmp_path: Path
) -> None:
    """To the byte, from the headers alone."""
    packed, _, _ = checkpoint(tmp_path, formats)
    target = opened(packed, maker).target
    named: Any = tree_flatten(target.model.parameters())
    arrays = [*(a for _, a in named), target.final_norm.weight, *held_arrays(target.model)]
    told = describe(packed, packed=True)
    num_bytes = sum(array.nbytes for array in arrays)
    assert told.need.weights_bytes == num_bytes
    assert sum(kind.held_bytes for kind in told.kinds) == num_bytes


def test_each_expert_of_a_group_is_its_own(maker: Maker) -> None:
    """Whichever are asked for: of one group, of both, in any order; also with biases."""
    random = mx.random.normal((EXPERTS, 16, 40), key=mx.random.key(0))
    half = random.astype(mx.float16)
    halves, wholes = (0, 3, 4), (1, 2, 5)
    stacks: dict[tuple[int, ...], PackedMatrix] = {
        ids: PackedMatrix(float_weight(weights[mx.array(ids)]), maker=maker)
        for ids, weights in ((halves, half), (wholes, random))
    }
    bias = mx.random.normal((EXPERTS, 16), key=mx.random.key(1))
    module = PackedExperts(grouped_experts(stacks), bias)
    assert module.shape == (EXPERTS, 16, 40)
    dense = mx.where(mx.array([e in halves for e in range(EXPERTS)])[:, None, None], half, random)
    for chosen in ([0, 3], [1, 2], [5, 4], [2, 2]):
        indices = mx.array([[chosen] * 2])
        x = mx.random.normal((1, 2, 1, 1, 40), key=mx.random.key(2))
        want = mx.stack([dense[e] @ x[0, 0, 0, 0] + bias[e] for e in chosen])
        assert close(module(x, indices)[0, 0, :, 0], want)
    ids = [0, 1, 1, 3, 5]
    x = mx.random.normal((5, 1, 40), key=mx.random.key(3))
    want = mx.stack([dense[e] @ row[0] + bias[e] for e, row in zip(ids, x, strict=True)])
    assert close(module(x, mx.array(ids), sorted_indices=True)[:, 0], want)


def test_what_mlx_packs_beside_foreign_experts_is_told(maker: Maker) -> None:
    """No stack is made of both."""
    parts, _ = PACKINGS["FP8 of one scale"].matrix(16, 32, 1)
    tensors = {f"m.experts.0.up_proj.{part}": array for part, array in parts.items()}
    tensors["m.experts.1.up_proj.weight"] = mx.zeros((16, 4), mx.uint32)
    found = foreign_tensors(tensors, Manner(keep=True, maker=maker))
    assert "1 such as m.experts.0.up_proj (its experts are not all" in str(told_expanded(found))


def test_experts_may_have_biases(maker: Maker) -> None:
    """One for each, as mlx-lm's have."""
    from mlx_lm.models.switch_layers import SwitchLinear

    from mtplx.kernels.packing import fp8_weight

    parts, weights = PACKINGS["FP8 of one scale"].matrix(EXPERTS * 16, 32, 1)
    codes = parts["weight"].reshape(EXPERTS, 16, 32)
    dense: Any = SwitchLinear(32, 16, EXPERTS)
    dense.weight = mx.array(weights.reshape(EXPERTS, 16, 32))
    dense.bias = mx.random.normal((EXPERTS, 16), key=mx.random.key(0))
    matrix = PackedMatrix(fp8_weight(codes, parts["weight_scale"]), maker=maker)
    x, chosen = mx.random.normal((1, 3, 1, 1, 32), key=mx.random.key(1)), mx.array([[[0, 5]] * 3])
    found = PackedExperts(matrix, dense.bias)(x, chosen)
    assert close(found, dense(x, chosen), bound=BOUND)
