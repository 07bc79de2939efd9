"""Checkpoints whose trunk and MTP head are packed throughout stay so, the head's experts too."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from mtplx.cli.inspect import inspect
from mtplx.loading.describe import describe
from mtplx.loading.expanded_tensors import Manner
from mtplx.loading.native_folder import FolderModel, folder_model
from mtplx.models.drafter import HeadDrafter
from mtplx.models.packed import PackedExperts, held_arrays
from mtplx.state import DecodeState
from tests.families import qwen, test_deepseek
from tests.families.assembled import Recipe, assemble, write_checkpoint
from tests.families.checkpoints import Tensors, read, write
from tests.kernels.hosts import fast
from tests.kernels.platforms import needs_linux
from tests.packings import PACKINGS
from tests.tiny import GREEDY, close, finish, random_prompt, start

pytestmark = needs_linux
PROMPT = random_prompt(5)
FEW = replace(GREEDY, max_tokens=5)
RECIPES: dict[str, tuple[Recipe, str]] = {
    "qwen3_5_moe": (qwen.QWEN3_5_MOE, "ModelOpt NVFP4"),
    "qwen3_5_moe, fused": (qwen.QWEN3_5_MOE, "FP8 by rows"),
    "qwen3_5_moe, fused, bare": (qwen.QWEN3_5_MOE, "FP8 by tiles that do not"),
    "deepseek_v3": (test_deepseek.RECIPE, "FP8 by tiles that fit"),
}
EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(.*)")
UNPACKED = ("embed_tokens", "lm_head", "shared_head.head", "mlp.gate.", "conv1d", "eh_proj", "fc.")


@dataclass(frozen=True, slots=True)
class Made:
    """A checkpoint, packed, and the model of the same weights.

    num_bytes: of what is packed, which are num_packed weights.
    """

    kind: str
    folder: Path
    packed: FolderModel
    dense: FolderModel
    num_bytes: int
    num_packed: int


@pytest.fixture(scope="module", params=RECIPES)
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Made]:
    mx.disable_compile()
    recipe, kind = RECIPES[request.param]
    path = tmp_path_factory.mktemp(request.param)
    tensors, config = read(write_checkpoint(assemble(recipe), path / "made"))
    packed, num_bytes, num_packed = dict(tensors), 0, 0
    for i, (name, array) in enumerate(sorted(tensors.items())):
        if array.ndim != 2 or any(part in name for part in UNPACKED) or array.shape[1] % 16:
            continue
        base = name.removesuffix(".weight")
        parts, weights = PACKINGS[kind].matrix(array.shape[0], array.shape[1], i)
        tensors[name] = mx.array(weights)
        del packed[name]
        packed |= {f"{base}.{part}": each for part, each in parts.items()}
        num_bytes += sum(a.nbytes for a in parts.values())
        num_packed += array.size
    if "fused" in request.param:
        packed = fused(packed, bare="bare" in request.param)
    told: dict[str, Any] = config | {"quantization_config": dict(PACKINGS[kind].config)}
    folder = write(path / "packed", told, {"model.safetensors": packed})
    dense = write(path / "dense", config, {"model.safetensors": tensors})
    manner = Manner(keep=True, maker=fast)
    model = folder_model(folder, manner=manner)
    yield Made(request.param, folder, model, folder_model(dense), num_bytes, num_packed)
    mx.enable_compile()


def fused(packed: Tensors, *, bare: bool) -> Tensors:
    """Experts of a layer in one tensor, gate and up of each one behind the other.

    bare: named as transformers does, without `.weight`.
    """
    found: dict[str, dict[int, mx.array]] = {}
    others: Tensors = {}
    for name, array in packed.items():
        if match := EXPERT.match(name):
            found.setdefault(f"{match[1]}.{match[3]}", {})[int(match[2])] = array
        else:
            others[name] = array
    for name, experts in found.items():
        whole = mx.stack([experts[e] for e in range(len(experts))])
        layer, projection, part = name.rsplit(".", 2)
        if projection == "gate_proj":
            up = found[f"{layer}.up_proj.{part}"]
            whole = mx.concatenate([whole, mx.stack([up[e] for e in range(len(up))])], axis=1)
        if projection != "up_proj":
            ending = part.removeprefix("weight") if bare else f".{part}"
            others[f"{layer}.{projection.replace('gate', 'gate_up')}{ending}"] = whole
    return others


def test_logits_are_those_of_dense_weights(made: Made) -> None:
    logits = []
    for model in (made.packed, made.dense):
        hidden = model.target.forward(mx.array(PROMPT), model.target.make_cache())
        logits.append(model.target.logits(model.target.normalise(hidden)))
    assert close(*logits, bound=1e-3)


def test_trunk_and_head_hold_what_is_on_disk(made: Made) -> None:
    """Both halves of latent attention's kv_b_proj as well."""
    assert made.packed.head is not None
    modules = made.packed.head.head.modules
    trunk, head = held_arrays(made.packed.target.model), held_arrays(modules[0])
    assert any(isinstance(m, PackedExperts) for m in modules[0].modules())
    held = sum(array.nbytes for array in [*trunk, *head])
    assert made.packed.note is None
    assert made.num_bytes * 0.95 < held < made.num_bytes * 1.25


def test_headers_tell_what_is_held_and_what_is_expanded(made: Made) -> None:
    """To the byte, without reading a weight or running a kernel."""
    model = made.packed
    assert model.head is not None
    found = describe(made.folder, packed=True)
    trunk: Any = model.target.model
    named: Any = [*tree_flatten(trunk.parameters()), ("norm", model.target.final_norm.weight)]
    held = sum(array.nbytes for array in [*(a for _, a in named), *held_arrays(trunk)])
    assert found.need.weights_bytes == held
    module = model.head.head.modules[0]
    own = sum(a.nbytes for a in [*model.head.head.arrays(), *held_arrays(module)])
    assert found.need.head_bytes == own
    assert found.num_parameters == describe(made.folder).num_parameters
    assert found.expanded is None
    assert describe(made.folder).expanded is None


def bytes_of(model: FolderModel) -> int:
    """Of trunk and head."""
    assert model.head is not None
    trunk, head = model.target.model, model.head.head
    named: Any = [*tree_flatten(trunk.parameters()), ("norm", model.target.final_norm.weight)]
    arrays = [*(array for _, array in named), *held_arrays(trunk), *head.arrays()]
    return sum(array.nbytes for array in [*arrays, *held_arrays(head.modules[0])])


def test_the_column_of_memory_is_what_loading_takes(made: Made) -> None:
    """To the byte. On a CPU codes are expanded to float32; on a GPU they stay as they are, and
    their scales count with them."""
    expanded, packed = (
        {kind.type: kind for kind in describe(made.folder, packed=on_gpu).kinds}
        for on_gpu in (False, True)
    )
    for kinds, model in ((expanded, folder_model(made.folder)), (packed, made.packed)):
        assert sum(kind.held_bytes for kind in kinds.values()) == bytes_of(model)
    assert expanded["U8"].held_bytes == 4 * made.num_packed
    assert made.packed.head is not None
    trees = (made.packed.target.model, made.packed.head.head.modules[0])
    assert packed["U8"].held_bytes == sum(a.nbytes for tree in trees for a in held_arrays(tree))


def test_inspect_has_a_line_for_what_is_expanded(
    made: Made, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """On a GPU, where there is any."""
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    inspect(str(made.folder), load=False)
    assert b"expanded" not in capsysbinary.readouterr().out


@pytest.mark.slow
def test_drafts_are_those_of_dense_weights(made: Made) -> None:
    """The same text, with drafts that are accepted and refused."""
    texts = []
    for model in (made.packed, made.dense):
        assert model.head is not None
        state = DecodeState(model.target, HeadDrafter(model.head.on(model.target)))
        texts.append(finish(start(state, PROMPT, FEW, depth=2)))
    assert texts[0] == texts[1]
