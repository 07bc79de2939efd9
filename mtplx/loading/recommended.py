"""How a model's makers want its tokens chosen, as its files say."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mtplx.errors import CheckpointError, SamplingError
from mtplx.files import accessing
from mtplx.loading.catalogue import known_model
from mtplx.loading.gguf_header import gguf_header
from mtplx.params import SamplingParams

# What a recipe that names some of these means by leaving out the others: the distribution as it is.
_LEFT_OUT: Mapping[str, float] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
_FOLDER_NAMES = {name: name for name in (*_LEFT_OUT, "typical_p", "repetition_penalty")}
_GGUF_NAMES = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
    "penalty_repeat": "repetition_penalty",
    "penalty_last_n": "penalty_window",
}
_GGUF_PREFIX = "general.sampling."


@dataclass(frozen=True, slots=True)
class Recommended:
    """What a model's files say about its use.

    values: fields of SamplingParams. source: where they stand, for a person to read.
    ignored: what was said and not followed, with the reason, one line each.
    context_length: None where it is not stated.
    """

    source: str
    values: Mapping[str, object] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    context_length: int | None = None


def recommended(path: Path) -> Recommended:
    """What the checkpoint at `path`, which `resolve` gave, recommends. Reads headers alone.

    Raises CheckpointError for files that are damaged and FileAccessError for files that cannot be
    read.
    """
    return _gguf(path) if path.is_file() else _folder(path)


def _gguf(path: Path) -> Recommended:
    header = gguf_header(path)
    context = header.get(f"{header.get('general.architecture')}.context_length")
    context_length = context if isinstance(context, int) and context > 0 else None
    known = known_model(path)
    if known is not None:
        source = f"what is known of {known.alias}"
        return Recommended(source, dict(known.sampling), (), context_length)
    stated = {
        name.removeprefix(_GGUF_PREFIX): value
        for name, value in header.items()
        if name.startswith(_GGUF_PREFIX)
    }
    # Stored in single precision: 0.6 comes back as 0.6000000238.
    stated = {n: float(f"{v:.7g}") if isinstance(v, float) else v for n, v in stated.items()}
    if stated.get("penalty_last_n") == -1:
        del stated["penalty_last_n"]  # all tokens, as without it
    values, ignored = _recipe(stated, _GGUF_NAMES)
    return Recommended("the file's metadata", values, ignored, context_length)


def _folder(path: Path) -> Recommended:
    source = "generation_config.json"
    config = _json(path / "config.json")
    inner = config.get("text_config")
    holders = (config, inner if isinstance(inner, dict) else {})
    lengths = [holder.get("max_position_embeddings") for holder in holders]
    context_length = next((n for n in lengths if isinstance(n, int) and n > 0), None)
    values, ignored = _recipe(_json(path / source), _FOLDER_NAMES)
    return Recommended(source, values, ignored, context_length)


def _recipe(
    stated: Mapping[str, object], names: Mapping[str, str]
) -> tuple[dict[str, object], tuple[str, ...]]:
    """The fields that a recipe sets, and what of it is not followed."""
    values: dict[str, object] = {}
    ignored: list[str] = []
    for theirs, ours in names.items():
        value = stated.get(theirs)
        if value is None:
            continue
        if ours == "temperature" and value == 0:
            # It stands for "do not sample" in old files; who wants that says --temp 0.
            ignored.append(f"{theirs} {value!r}: a reply would always take the likeliest token")
            continue
        if ours == "top_k" and value == -1:
            value = 0
        try:
            values[ours] = getattr(SamplingParams(**{ours: value}), ours)  # type: ignore[arg-type]
        except SamplingError as error:
            ignored.append(str(error))
    if (stated.get("do_sample") is True or values.keys() & _LEFT_OUT.keys()) and not ignored:
        values = {**_LEFT_OUT, **values}
    return values, tuple(ignored)


def _json(path: Path) -> Mapping[str, object]:
    with accessing("read", path):
        try:
            value = json.loads(path.read_bytes())
        except FileNotFoundError:
            return {}
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{path} is not JSON: {error}. Fetch it again.") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds no JSON object. Fetch it again.")
    return value
