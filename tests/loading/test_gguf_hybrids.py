"""Gemma 3, LFM2, Qwen 3.5 and Qwen3-Next from GGUF: the logits of transformers' own models."""

from functools import cache
from pathlib import Path
from typing import Any

import gguf
import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from mtplx.errors import CheckpointError, HeadError, UnsupportedTensorError
from mtplx.loading.describe import describe
from mtplx.loading.gguf_file import open_gguf
from mtplx.loading.gguf_known import ARCHITECTURES
from mtplx.loading.gguf_llama import PAIRWISE
from mtplx.loading.gguf_model import LAYOUTS, GgufModel, gguf_model
from mtplx.models.drafter import HeadDrafter
from mtplx.state import DecodeState
from tests.loading.gguf_conversion import CASES, SIZES, Arrays, stored_weights, write_case
from tests.tiny import finish, random_prompt, start

PROMPT = random_prompt(40)
BOUND = 5e-5  # rounding: Qwen3-Next is at 2.3e-5 with a BLAS that adds in another order


@cache
def reference(arch: str) -> tuple[Arrays, NDArray[np.float32]]:
    """Random weights by Hugging Face's names, and transformers' logits [T, V]."""
    torch = pytest.importorskip("torch")
    import transformers

    case = CASES[arch]
    module = case.title if case.title in ("Lfm2", "Qwen3Next") else f"{case.title}Text"
    config = getattr(transformers, f"{module}Config")(
        **(SIZES | {"rms_norm_eps": 1e-6, "tie_word_embeddings": arch in ("gemma3", "lfm2")})
        | case.config
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{case.title}ForCausalLM")(config).eval()
    for name, parameter in model.named_parameters():
        small = 0.3 if parameter.ndim > 1 else 0.2
        torch.nn.init.normal_(parameter, mean=float(name.endswith("A_log")), std=small)
    with torch.inference_mode():
        logits = model(torch.tensor([PROMPT])).logits[0].float().numpy()
    weights = {name: value.detach().numpy() for name, value in model.named_parameters()}
    return weights, logits


def read(path: Path) -> GgufModel:
    return gguf_model(open_gguf(path), 512, packed=False)


def logits_of(model: GgufModel) -> NDArray[np.float32]:
    target = model.target
    hidden = target.forward(mx.array(PROMPT), target.make_cache())
    return np.array(target.logits(target.normalise(hidden)))


def furthest(model: GgufModel, arch: str) -> float:
    """The largest difference, as a share of the largest logit."""
    expected = reference(arch)[1]
    return float(np.abs(logits_of(model) - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("arch", CASES)
def test_logits_are_those_of_transformers(arch: str, tmp_path: Path) -> None:
    """Names, shifts and orders undone: equal to rounding."""
    weights = stored_weights(arch, reference(arch)[0])
    model = read(write_case(tmp_path / "a.gguf", CASES[arch], weights))
    assert furthest(model, arch) < BOUND


TYPES = ("Q4_0", "Q8_0", "Q5_1", "F16", "Q4_1", "MXFP4", "Q5_0", "BF16")


@pytest.mark.parametrize("arch", CASES)
def test_a_file_of_mixed_types_is_the_model_of_its_rounded_weights(
    arch: str, tmp_path: Path
) -> None:
    """Another type for each matrix, as files have them; bit for bit."""
    weights = stored_weights(arch, reference(arch)[0])
    kinds = {
        name: "F32" if array.ndim < 2 or array.shape[-1] % 32 else TYPES[i % len(TYPES)]
        for i, (name, array) in enumerate(sorted(weights.items()))
    }
    rounded = {}
    for name, array in weights.items():
        kind = gguf.GGMLQuantizationType[kinds[name]]
        stored = gguf.quants.quantize(np.ascontiguousarray(array), kind)
        rounded[name] = gguf.quants.dequantize(stored, kind).reshape(array.shape)
    mixed = read(write_case(tmp_path / "a.gguf", CASES[arch], weights, kinds.__getitem__))
    dense = read(write_case(tmp_path / "b.gguf", CASES[arch], rounded))
    assert np.array_equal(logits_of(mixed), logits_of(dense))


@pytest.mark.parametrize("arch", ["qwen35", "qwen35moe"])
def test_value_heads_in_groups_are_seen(arch: str, tmp_path: Path) -> None:
    """A file whose heads were not put in turns would be another model."""
    weights = stored_weights(arch, reference(arch)[0], tiled=False)
    assert furthest(read(write_case(tmp_path / "a.gguf", CASES[arch], weights)), arch) > 0.01


@pytest.mark.parametrize("arch", ["gemma3", "qwen35"])
def test_norms_that_were_not_shifted_are_seen(arch: str, tmp_path: Path) -> None:
    """Their one is there exactly once."""
    weights = stored_weights(arch, reference(arch)[0])
    plain = {n: a - 1 if n.endswith("attn_norm.weight") else a for n, a in weights.items()}
    assert furthest(read(write_case(tmp_path / "a.gguf", CASES[arch], plain)), arch) > 0.01


@pytest.mark.parametrize("arch", CASES)
def test_every_tensor_is_needed_and_none_is_left(arch: str, tmp_path: Path) -> None:
    """One that is missing or has no place is named."""
    weights = stored_weights(arch, reference(arch)[0])
    more = weights | {"blk.0.attn_sinks.weight": np.ones(4, np.float32)}
    with pytest.raises(UnsupportedTensorError, match=r"blk\.0\.attn_sinks\.weight"):
        read(write_case(tmp_path / "a.gguf", CASES[arch], more))
    fewer = {name: array for name, array in weights.items() if name != "blk.1.attn_v.weight"}
    with pytest.raises(CheckpointError, match=r"v_proj\.weight is missing"):
        read(write_case(tmp_path / "b.gguf", CASES[arch], fewer))


@pytest.mark.parametrize(
    ("arch", "more"),
    [
        ("gemma3", {"attention.sliding_window_pattern": [1, 0, 0, 1]}),
        ("qwen35", {"attention.recurrent_layers": [1, 1, 0, 0]}),
        ("gemma3", {"final_logit_softcapping": 30.0}),
        ("lfm2", {"expert_count": 4}),
    ],
)
def test_what_is_not_known_is_refused_by_name(
    arch: str, more: dict[str, Any], tmp_path: Path
) -> None:
    """Layers in an irregular order, caps and experts."""
    weights = stored_weights(arch, reference(arch)[0])
    with pytest.raises(UnsupportedTensorError, match=next(iter(more)).split(".")[-1]):
        read(write_case(tmp_path / "a.gguf", CASES[arch], weights, **more))


@pytest.mark.parametrize("name", ["blk.0.attn_norm.weight", "blk.0.ssm_a", "output_norm.weight"])
def test_a_vector_that_holds_no_number_is_refused_by_name(name: str, tmp_path: Path) -> None:
    """One that is none makes all logits none."""
    weights = stored_weights("qwen35", reference("qwen35")[0])
    damaged = weights[name].copy()
    damaged[1] = np.nan
    with pytest.raises(CheckpointError, match=f"{name} holds what is no number"):
        read(write_case(tmp_path / "a.gguf", CASES["qwen35"], weights | {name: damaged}))


def test_a_factor_beside_a_tensor_is_heeded(tmp_path: Path) -> None:
    """NVFP4 has one for each tensor; that of the activations says nothing of the weights."""
    weights = stored_weights("qwen35", reference("qwen35")[0])
    name = "blk.1.ffn_up"
    halved: Arrays = {
        f"{name}.weight": weights[f"{name}.weight"] * np.float32(0.5),
        f"{name}.scale": np.array([2], np.float32),
        f"{name}.input_scale": np.array([7], np.float32),
    }
    assert (
        furthest(read(write_case(tmp_path / "a.gguf", CASES["qwen35"], weights | halved)), "qwen35")
        < BOUND
    )


def with_head(arch: str) -> tuple[Arrays, Arrays]:
    """A trunk's tensors and a random head's: an attention layer of the trunk, and what joins."""
    trunk = stored_weights(arch, reference(arch)[0])
    rng = np.random.default_rng(7)
    block = {n.replace("blk.3.", "blk.4."): a for n, a in trunk.items() if n.startswith("blk.3.")}
    norm = rng.uniform(0.5, 1.5, (3, 32)).astype(np.float32)
    own = {
        "blk.4.nextn.eh_proj.weight": rng.normal(size=(32, 64)).astype(np.float32) / 8,
        "blk.4.nextn.enorm.weight": norm[0],
        "blk.4.nextn.hnorm.weight": norm[1],
        "blk.4.nextn.shared_head_norm.weight": norm[2],
    }
    return trunk, block | own


MORE = {"block_count": 5, "nextn_predict_layers": 1}


@pytest.mark.parametrize("arch", ["qwen35", "qwen35moe"])
def test_a_head_in_the_file_or_beside_it_drafts_alike(arch: str, tmp_path: Path) -> None:
    """Speculative text at temperature 0 is the plain one, and both heads draft the same."""
    trunk, head = with_head(arch)
    whole = write_case(tmp_path / "a.gguf", CASES[arch], trunk | head, **MORE)
    lone = write_case(tmp_path / "b.gguf", CASES[arch], trunk)
    beside = write_case(tmp_path / "c.gguf", CASES[arch], head, **MORE)
    embedded = read(whole)
    separate = gguf_model(open_gguf(lone), 512, packed=False, head_file=open_gguf(beside))
    assert furthest(embedded, arch) < BOUND
    assert embedded.head is not None
    assert separate.head is not None
    assert embedded.head.num_bytes == separate.head.num_bytes
    drafts = []
    for model, found in ((embedded, embedded.head), (separate, separate.head)):
        drafter = HeadDrafter(found.on(model.target))
        state = DecodeState(model.target, drafter)
        text = finish(start(state, PROMPT, depth=3))
        assert text == finish(start(DecodeState(model.target), PROMPT, depth=0))
        drafts.append(text)
    assert drafts[0] == drafts[1]


def test_a_head_is_told_from_the_header(tmp_path: Path) -> None:
    """Of the file itself; where there is none, nobody is told to train what cannot be trained."""
    trunk, head = with_head("qwen35")
    whole = write_case(tmp_path / "a.gguf", CASES["qwen35"], trunk | head, **MORE)
    lone = describe(write_case(tmp_path / "b.gguf", CASES["qwen35"], trunk))
    assert describe(whole).head == whole
    assert lone.head is None
    assert lone.no_head_reason == read(lone.path).no_head_reason


def test_every_architecture_has_a_reader() -> None:
    """What is known by name can be loaded, and nothing else."""
    assert set(ARCHITECTURES) == {*PAIRWISE, *LAYOUTS}


def test_a_file_without_a_head_says_so(tmp_path: Path) -> None:
    """It decodes plainly."""
    weights = stored_weights("qwen35", reference("qwen35")[0])
    model = read(write_case(tmp_path / "a.gguf", CASES["qwen35"], weights))
    assert model.head is None
    assert model.no_head_reason == "the file brings no MTP head along, so it decodes plainly."


def test_a_head_with_a_part_missing_costs_the_drafting_alone(tmp_path: Path) -> None:
    """In the model's own file; one that was asked for has to fit."""
    trunk, head = with_head("qwen35")
    del head["blk.4.nextn.enorm.weight"]
    model = read(write_case(tmp_path / "a.gguf", CASES["qwen35"], trunk | head, **MORE))
    assert model.head is None
    assert "embedding_norm" in str(model.no_head_reason)
    beside = open_gguf(write_case(tmp_path / "b.gguf", CASES["qwen35"], head, **MORE))
    lone = open_gguf(write_case(tmp_path / "c.gguf", CASES["qwen35"], trunk))
    with pytest.raises(HeadError, match="embedding_norm"):
        gguf_model(lone, 512, packed=False, head_file=beside)
