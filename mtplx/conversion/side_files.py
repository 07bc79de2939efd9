"""The files of a checkpoint beside its weights: configuration, index, tokenizer and templates."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mtplx.conversion.plan import PlannedFile
from mtplx.files import accessing, write_atomically
from mtplx.models.quantisation import Packing

INDEX = "model.safetensors.index.json"
COPIED = (
    "*.json",
    "*.jinja",
    "*.model",
    "*.tiktoken",
    "*.txt",
    "*.jsonl",
    "*.py",
    "*.md",
    "LICEN*",
)
_OWN = {"config.json", INDEX, "hf_quant_config.json"}


def copy_side_files(source: Path, folder: Path) -> set[str]:
    """Tokenizer, templates, generation settings, licence and model card, as they are.

    Gives their names. Raises FileAccessError.
    """
    copied = set()
    for file in sorted({file for pattern in COPIED for file in source.glob(pattern)}):
        if file.is_file() and file.name not in _OWN and ".index." not in file.name:
            with accessing("copy", file):
                content = file.read_bytes()
            write_atomically(folder / file.name, content)
            copied.add(file.name)
    return copied


def write_index(folder: Path, files: Iterable[PlannedFile]) -> None:
    """Which file holds which tensor. Raises FileAccessError."""
    listed = list(files)
    index = {
        "metadata": {"total_size": sum(file.num_bytes for file in listed)},
        "weight_map": {
            part.name: file.name for file in listed for unit in file.units for part in unit.parts
        },
    }
    write_atomically(folder / INDEX, json.dumps(index, indent=1).encode())


def write_config(
    folder: Path,
    config: Mapping[str, Any],
    files: Iterable[PlannedFile],
    packing: Packing | None,
    dtype: str | None,
    about: Mapping[str, Any],
) -> None:
    """config.json with the packing of each matrix that differs from the trunk's.

    dtype: what tensors were cast to, if they were. about: what this program says of its
    conversion, under "mtplx". Raises FileAccessError.
    """
    kept = _restated(config, dtype)
    if isinstance(text := kept.get("text_config"), dict):
        kept["text_config"] = _restated(text, dtype)
    units = [unit for file in files for unit in file.units if unit.packing is not None]
    if units:
        default = packing or units[0].packing
        assert default is not None
        own = {
            unit.path: _told(unit.packing) for unit in units if unit.packing not in (None, default)
        }
        # Twice: the hub's pages show what stands under the second name.
        kept["quantization"] = kept["quantization_config"] = _told(default) | own
    kept["mtplx"] = dict(about)
    write_atomically(
        folder / "config.json", json.dumps(kept, indent=4, ensure_ascii=False).encode()
    )


def _restated(section: Mapping[str, Any], dtype: str | None) -> dict[str, Any]:
    """A section without how its source was packed, and with the new dtype."""
    cast = {} if dtype is None else dict.fromkeys(_DTYPE_KEYS & section.keys(), dtype)
    return {key: value for key, value in section.items() if key not in _REPLACED} | cast


def _told(packing: Packing | None) -> dict[str, Any]:
    assert packing is not None
    return {"group_size": packing.group_size, "bits": packing.bits, "mode": packing.mode}


_REPLACED = ("quantization", "quantization_config", "mtplx")
_DTYPE_KEYS = {"torch_dtype", "dtype"}
