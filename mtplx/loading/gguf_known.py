"""What can be told of a GGUF model before it is opened: its files, and what kinds are known."""

import re
from pathlib import Path

from mtplx.errors import CheckpointError

# llama-type trunks first; the others go through mlx-lm's models.
ARCHITECTURES = (
    "llama",
    "qwen2",
    "qwen3",
    "gemma3",
    "lfm2",
    "qwen35",
    "qwen35moe",
    "qwen3next",
)

_PART = re.compile(r"(?P<stem>.*)-(?P<part>\d{5})-of-(?P<count>(?!00000)\d{5})\.gguf", re.ASCII)


def unknown_architecture(name: object) -> str:
    """What there is to say of another one, in one line."""
    return f"Architecture {name!r} is not readable from GGUF yet; {', '.join(ARCHITECTURES)} are."


def part_names(name: str) -> list[str]:
    """The files of the model that a file of this name belongs to, in order: often itself alone."""
    match = _PART.fullmatch(name)
    if match is None or not 1 <= int(match["part"]) <= int(match["count"]):
        return [name]
    count = int(match["count"])
    return [f"{match['stem']}-{part:05d}-of-{count:05d}.gguf" for part in range(1, count + 1)]


def gguf_parts(path: Path) -> list[Path]:
    """All files of the model that this one belongs to, in order. CheckpointError if one lacks."""
    names = part_names(path.name)
    if names == [path.name]:
        return [path]
    files = [path.with_name(name) for name in names]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise CheckpointError(
            f"{path} is one of {len(files)} files that are a model together, and "
            f"{', '.join(missing[:3])} is not there. Fetch the missing ones."
        )
    return files


def is_later_part(name: str) -> bool:
    """Whether a file of this name only goes on with a model that begins in another."""
    return part_names(name)[0] != name
