"""What a model's makers recommend is taken as they mean it, and never as temperature 0."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from mtplx.errors import CheckpointError
from mtplx.loading.catalogue import SMOLLM2, known_model
from mtplx.loading.recommended import Recommended, recommended

PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def folder(path: Path, generation: object, **config: object) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (path / "generation_config.json").write_text(json.dumps(generation))
    return path


def file(path: Path, **sampling: float) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(4096)
    for name, value in sampling.items():
        kind = gguf.GGUFValueType.FLOAT32 if isinstance(value, float) else gguf.GGUFValueType.INT32
        writer.add_key_value(f"general.sampling.{name}", value, kind)
    writer.add_tensor("w", np.ones((2, 32), np.float32))
    for write in ("header_to_file", "kv_data_to_file", "tensors_to_file"):
        getattr(writer, f"write_{write}")()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("stated", "values"),
    [
        ({}, {}),
        (None, {}),
        ({"eos_token_id": 2, "max_new_tokens": 256, "max_length": 20}, {}),
        ({"do_sample": False}, {}),
        ({"temperature": 0.6, "top_p": 0.9}, {**PLAIN, "temperature": 0.6, "top_p": 0.9}),
        ({"do_sample": True, "top_k": 64, "top_p": 0.95}, {**PLAIN, "top_k": 64, "top_p": 0.95}),
        ({"do_sample": True}, PLAIN),
        ({"repetition_penalty": 1.05}, {"repetition_penalty": 1.05}),
        ({"temperature": 1, "top_k": -1}, PLAIN),
        ({"temperature": None, "top_p": None}, {}),
    ],
)
def test_a_folders_recipe_is_taken_whole(tmp_path: Path, stated: object, values: object) -> None:
    """What a recipe leaves out is off, as its makers tried it; no recipe sets nothing."""
    advice = recommended(folder(tmp_path / "m", stated, max_position_embeddings=512))
    assert advice == Recommended("generation_config.json", values, (), 512)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, 0.0])
def test_temperature_0_is_never_an_accident(tmp_path: Path, value: float) -> None:
    """Old files say 0 where they mean that nobody asked; it is told and not followed."""
    advice = recommended(folder(tmp_path / "m", {"do_sample": False, "temperature": value}))
    assert advice.values == {}
    assert "temperature" in advice.ignored[0]


@pytest.mark.parametrize(
    ("name", "value"), [("top_p", 0), ("top_k", "all"), ("min_p", 3), ("temperature", -1)]
)
def test_a_value_that_cannot_be_is_told_and_not_followed(
    tmp_path: Path, name: str, value: object
) -> None:
    """The rest of the recipe is."""
    advice = recommended(folder(tmp_path / "m", {"repetition_penalty": 1.1, name: value}))
    assert advice.values == {"repetition_penalty": 1.1}
    assert advice.ignored[0].startswith(f"{name} is {value!r}")


@pytest.mark.parametrize("inner", [True, False])
def test_the_context_is_found_where_models_that_see_keep_it(tmp_path: Path, inner: bool) -> None:
    """At the top or under text_config."""
    size = {"max_position_embeddings": 77}
    config: dict[str, Any] = {"text_config": size} if inner else size
    assert recommended(folder(tmp_path / "m", None, **config)).context_length == 77


def test_a_gguf_files_recipe_is_read(tmp_path: Path) -> None:
    """Single precision is rounded to what was meant; -1 is all tokens."""
    path = file(tmp_path / "a.gguf", temp=0.6, top_k=20, penalty_repeat=1.1, penalty_last_n=-1)
    assert recommended(path) == Recommended(
        "the file's metadata",
        {**PLAIN, "temperature": 0.6, "top_k": 20, "repetition_penalty": 1.1},
        (),
        4096,
    )
    assert recommended(file(tmp_path / "b.gguf")).values == {}
    assert recommended(file(tmp_path / "c.gguf", penalty_last_n=64)).values == {
        "penalty_window": 64
    }


def test_what_is_known_better_goes_before_the_file(tmp_path: Path) -> None:
    """The default model under any path, told by its name and size."""
    path = file(tmp_path / SMOLLM2.file_name, temp=0.9)
    assert known_model(path) is None
    assert recommended(path).values["temperature"] == 0.9
    with path.open("r+b") as content:
        content.truncate(SMOLLM2.num_bytes)
    assert known_model(path) is SMOLLM2
    assert recommended(path).values == SMOLLM2.sampling


@pytest.mark.parametrize("content", ["{", "[]", "\xff"])
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    """It would stop the loading as well."""
    path = folder(tmp_path / "m", {})
    (path / "generation_config.json").write_text(content, "latin-1")
    with pytest.raises(CheckpointError, match=r"generation_config\.json"):
        recommended(path)
