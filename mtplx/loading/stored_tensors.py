"""The safetensors files of a checkpoint folder, opened but not read.

Tensors are lazy: a header is all that is read of a file until one of them is evaluated.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import mlx.core as mx

from mtplx.errors import CheckpointError
from mtplx.models.family import Tensors

INDEX = "model.safetensors.index.json"
_SECTIONS = ("quantization_config", "quantization", "text_config")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file: lazy tensors by name, and the metadata of its header.

    damage: why there are none, of a file beside the model's own that cannot be read.
    """

    path: Path
    tensors: Tensors
    metadata: Mapping[str, str]
    damage: str | None = None


@dataclass(frozen=True, slots=True)
class StoredFolder:
    """A folder's files.

    files: those that make up the model. beside: the other safetensors files of the folder.
    absent: tensors that the index lists in files that are not there, by name.
    """

    path: Path
    config: Mapping[str, Any]
    files: tuple[StoredFile, ...]
    beside: tuple[StoredFile, ...] = ()
    absent: Mapping[str, str] = field(default_factory=dict)


def open_folder(path: Path) -> StoredFolder:
    """What the index lists or, without one, `model*.safetensors` or whatever there is.

    Raises CheckpointError, naming the file, for one that cannot be read.
    """
    config, listed = read_config(path), _listed(path)
    there = sorted(path.glob("*.safetensors"))
    if listed:
        main = [file for file in there if file.name in set(listed.values())]
    else:
        main = [file for file in there if file.name.startswith("model")] or there
    if not main:
        listed_alone = f" that {INDEX} lists" if listed and there else ""
        raise CheckpointError(f"{path} holds no *.safetensors files{listed_alone}. Fetch it again.")
    names = {file.name for file in main}
    return StoredFolder(
        path,
        config,
        tuple(_opened(file) for file in main),
        tuple(_opened_beside(file) for file in there if file not in main),
        {name: file for name, file in listed.items() if file not in names},
    )


def read_config(path: Path) -> dict[str, Any]:
    """A folder's config.json. Raises CheckpointError."""
    file = path / "config.json"
    try:
        config = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} has no config.json. Fetch it again.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is not JSON: {error}. Fetch it again.") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{file} holds no JSON object. Fetch it again.")
    for section in _SECTIONS:
        if not isinstance(config.get(section) or {}, dict):
            raise CheckpointError(
                f"{file} has {section} = {config[section]!r}; an object is needed. Fetch it again."
            )
    return config


def _listed(path: Path) -> dict[str, str]:
    """Which file holds which tensor, as the index has it; empty where there is none."""
    file = path / INDEX
    if not file.is_file():
        return {}
    try:
        listed = json.loads(file.read_bytes())["weight_map"]
        return {str(name): str(held) for name, held in listed.items()}
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file} lists no tensors. Fetch it again.") from error


def _opened_beside(file: Path) -> StoredFile:
    """A file that the model does not need: one that cannot be read is no error yet."""
    try:
        return _opened(file)
    except CheckpointError as error:
        return StoredFile(file, {}, {}, str(error))


def _opened(file: Path) -> StoredFile:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np"):  # checks what MLX takes on trust: lengths and places
            pass
        loaded = mx.load(str(file), format="safetensors", return_metadata=True)
    except (OSError, SafetensorError, RuntimeError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"{file} is not a safetensors file that can be read: {error}. Fetch it again."
        ) from error
    tensors, metadata = cast("tuple[Tensors, dict[str, str]]", loaded)
    return StoredFile(file, tensors, metadata)
