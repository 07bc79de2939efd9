"""What is suggested can be loaded, and needs what is said."""

import json
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from mtplx.loading.suggest import FOR_CPU, FOR_GPU, Suggestion, best_for

ALL = (*FOR_GPU, *FOR_CPU)
KNOWN = {"SmolLM2-1.7B": 1_711_376_384, "Qwen3-8B": 8_190_735_360, "Qwen3-4B": 4_022_468_096}


def config_of(model: Suggestion, *, scale: int = 1) -> dict[str, object]:
    """A configuration as its makers publish it. scale: smaller by so much."""
    return {
        "model_type": model.model_type,
        "hidden_size": model.hidden_size // scale,
        "num_hidden_layers": model.num_layers if scale == 1 else 2,
        "intermediate_size": model.mlp_size // scale,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim // scale,
        "vocab_size": model.vocab_size if scale == 1 else 257,
        "tie_word_embeddings": model.tied,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "max_position_embeddings": 4096,
        "torch_dtype": "float16",
        "eos_token_id": 256,
    }


@pytest.mark.slow
@pytest.mark.parametrize("model", ALL, ids=lambda model: model.model.rpartition("/")[2])
def test_parameters_are_those_of_the_model_that_is_built(model: Suggestion) -> None:
    """Counted on the model that mlx-lm makes of the dimensions, none of it computed."""
    from mlx_lm.utils import _get_classes

    model_class, arguments = _get_classes(config_of(model))
    built = model_class(arguments.from_dict(config_of(model)))
    arrays = dict(tree_flatten(built.parameters())).values()
    assert sum(array.size for array in arrays) == model.num_parameters


@pytest.mark.parametrize(("name", "number"), KNOWN.items())
def test_parameters_are_as_published(name: str, number: int) -> None:
    """For those whose number is stated to the last digit."""
    (model,) = [model for model in ALL if name in model.model]
    assert model.num_parameters == number


@pytest.mark.slow
@pytest.mark.parametrize("model", [FOR_GPU[0], FOR_GPU[-1]], ids=["tied", "untied"])
def test_a_small_one_of_the_family_loads_packed_and_answers(
    model: Suggestion, tmp_path: Path
) -> None:
    """Four-bit weights of the same architecture, through the same code."""
    from mlx_lm.utils import _get_classes, quantize_model, save_model

    from mtplx.generate import generate
    from mtplx.loading.load import load
    from tests.tiny_folder import write_folder

    config = config_of(model, scale=2 if model.head_dim == 64 else 1)
    config |= {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    config |= {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 257,
    }
    mx.random.seed(1)
    model_class, arguments = _get_classes(config)
    built, config = quantize_model(
        model_class(arguments.from_dict(config)), config, group_size=64, bits=4
    )
    path = write_folder(tmp_path / "model")  # for its tokenizer
    save_model(path, built)
    (path / "config.json").write_text(json.dumps(config))
    assert generate(load(path), "hello", raw=True, max_tokens=5).num_tokens > 0


def test_the_best_that_fits_is_suggested() -> None:
    """More memory, a better model; too little, none."""
    sizes = [0.5e9, 2e9, 4e9, 8e9, 16e9, 64e9]
    for on_gpu, models in ((True, FOR_GPU), (False, FOR_CPU)):
        best = [best_for(int(size), on_gpu=on_gpu) for size in sizes]
        assert best[0] is None
        assert best[-1] is models[-1]
        places = [models.index(model) for model in best if model is not None]
        assert places == sorted(places)
        assert all(
            model is None or model.memory_bytes(on_gpu=on_gpu) <= size
            for model, size in zip(best, sizes, strict=True)
        )


def test_a_cpu_holds_more_than_is_fetched() -> None:
    """Eight-bit weights become float32 there."""
    for model in FOR_CPU:
        assert model.memory_bytes(on_gpu=False) > 3 * model.download_bytes
        assert model.memory_bytes(on_gpu=True) < model.memory_bytes(on_gpu=False)
