"""Folders that mlx-lm reads: the same logits, or a refusal by name."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mtplx.errors import CheckpointError, UnsupportedTensorError
from mtplx.loading.native_folder import folder_model
from mtplx.models.mlx_lm_target import MlxLmTarget
from mtplx.state import DecodeState
from tests.foreign import hf_config, hf_tensors
from tests.tiny import (
    DIMS,
    assert_holds,
    close,
    finish,
    plain,
    random_prompt,
    same,
    start,
    tiny_target,
)

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-6,
    "vocab_size": 64,
    "rope_theta": 10_000.0,
    "max_position_embeddings": 512,
}
QWEN3 = SMALL | {"model_type": "qwen3", "tie_word_embeddings": True}
CAPPED = SMALL | {"model_type": "gemma2"}
SCALED = SMALL | {"model_type": "cohere", "layer_norm_eps": 1e-5, "logit_scale": 0.1}
WINDOWED = SMALL | {"model_type": "gemma3_text", "sliding_window": 16, "sliding_window_pattern": 2}
RECURRENT = {
    "model_type": "mamba",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "state_size": 4,
    "num_hidden_layers": 2,
    "conv_kernel": 4,
    "use_bias": False,
    "use_conv_bias": True,
    "time_step_rank": 2,
}


def save(folder: Path, config: dict[str, Any], weights: dict[str, mx.array]) -> Path:
    folder.mkdir(exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def random_folder(folder: Path, config: dict[str, Any]) -> Path:
    """A model of mlx-lm's with the weights that it makes up."""
    from mlx_lm.utils import _get_classes

    model_class, args_class = _get_classes(config)
    model = model_class(args_class.from_dict(config))
    return save(folder, config, dict(tree_flatten(model.parameters())))


def loaded(folder: Path) -> MlxLmTarget:
    return folder_model(folder).target


def test_a_folder_decodes_like_the_same_weights_read_by_us(tmp_path: Path) -> None:
    """Hidden states, logits, text and the state after undone passes."""
    own = tiny_target()
    weights = {name: mx.array(array) for name, array in hf_tensors(own).items()}
    target = loaded(save(tmp_path, hf_config(DIMS), weights))
    assert (target.vocab_size, target.context_length) == (64, DIMS.context_length)
    prompt = random_prompt(12)
    hidden = target.forward(mx.array(prompt), target.make_cache())
    assert close(hidden, own.forward(mx.array(prompt), own.make_cache()))
    assert close(target.logits(target.normalise(hidden)), own.logits(own.normalise(hidden)))
    state = DecodeState(target)
    reply = finish(start(state, prompt))
    assert reply == plain(own, prompt)
    assert_holds(state, [*prompt, *reply[:-1]])
    state.forward(mx.array([1, 2, 3, 4]))
    state.keep([1, 2])
    assert_holds(state, [*prompt, *reply[:-1], 1, 2])


@pytest.mark.parametrize("quantised", [False, True])
def test_blocks_equal_single_steps_in_a_family_of_mlx_lms_own(
    quantised: bool, tmp_path: Path
) -> None:
    """A tied Qwen3, in float32 and in 4 bits: the logits of its own forward, however passed."""
    from mlx_lm.utils import load_model, quantize_model, save_model

    folder = random_folder(tmp_path, QWEN3)
    if quantised:
        model, config = load_model(folder)
        model, config = quantize_model(model, config, group_size=32, bits=4)
        save_model(folder, model)
        (folder / "config.json").write_text(json.dumps(config))
    target, prompt = loaded(folder), random_prompt(20)
    expected = load_model(folder)[0](mx.array(prompt)[None])[0]
    cache = target.make_cache()
    rows = [target.forward(mx.array(prompt[i:j]), cache) for i, j in ((0, 15), (15, 16), (16, 20))]
    assert same(target.logits(target.normalise(mx.concatenate(rows))), expected)


@pytest.mark.parametrize("config", [CAPPED, SCALED], ids=["capped", "scaled"])
def test_logits_that_are_made_in_another_way_are_refused(
    config: dict[str, Any], tmp_path: Path
) -> None:
    """A cap or a scale behind lm_head would be lost in silence: the model is named instead."""
    with pytest.raises(UnsupportedTensorError, match=config["model_type"]):
        loaded(random_folder(tmp_path, config))


@pytest.mark.parametrize("config", [WINDOWED, RECURRENT], ids=["windowed", "recurrent"])
def test_state_of_other_kinds_decodes_and_undoes(config: dict[str, Any], tmp_path: Path) -> None:
    """After passes that were undone in part, a model goes on as one that never made them."""
    target, prompt = loaded(random_folder(tmp_path, config)), random_prompt(20)
    state = DecodeState(target)
    state.begin(prompt, drafting=False)
    state.forward(mx.array([prompt[-1], 1, 2, 3]))
    state.keep([prompt[-1], 1])
    logits = state.forward(mx.array([5])).logits
    cache = target.make_cache()
    hidden = target.forward(mx.array([*prompt, 1, 5]), cache)[-1:]
    assert close(logits, target.logits(target.normalise(hidden)))


def test_state_without_a_way_back_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first token, naming the model and its kind of state."""
    from mlx_lm.models import qwen3

    class OddCache:
        offset = 0

    monkeypatch.setattr(qwen3.Model, "make_cache", lambda self: [OddCache()] * 2, raising=False)
    with pytest.raises(UnsupportedTensorError, match=r"\(qwen3\): .*OddCache"):
        loaded(random_folder(tmp_path, QWEN3))


def spoil_nothing(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def spoil_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "llama"')


def spoil_type(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "no_such_family"}')


def spoil_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def spoil_names(folder: Path) -> None:
    mx.save_safetensors(str(folder / "model.safetensors"), {"nobody.knows": mx.zeros(3)})


@pytest.mark.parametrize(
    "spoil", [spoil_nothing, spoil_config, spoil_type, spoil_weights, spoil_names]
)
def test_a_folder_that_is_damaged_is_an_error_that_names_it(spoil: Any, tmp_path: Path) -> None:
    """No weights, no JSON, no such family, weights cut short or of another model."""
    weights = {name: mx.array(array) for name, array in hf_tensors(tiny_target()).items()}
    folder = save(tmp_path / "some-model", hf_config(DIMS), weights)
    spoil(folder)
    with pytest.raises(CheckpointError, match="some-model"):
        loaded(folder)


def test_damaged_numbers_do_not_pass_for_another_way_of_making_logits(tmp_path: Path) -> None:
    """A model whose logits are NaN both ways is loaded; decoding it is what fails."""
    weights = {name: mx.array(array) for name, array in hf_tensors(tiny_target()).items()}
    name = "model.layers.0.mlp.down_proj.weight"  # a matrix, which is not looked through
    weights[name] = mx.full(weights[name].shape, np.nan)
    assert loaded(save(tmp_path, hf_config(DIMS), weights)).vocab_size == 64
