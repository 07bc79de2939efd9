"""A decode state in a file, so that what was read need not be read again by another process.

model = load("smollm2")
state = load_prompt_cache(path, model)        # or model.new_state()
generate(model, conversation, state=state)
save_prompt_cache(state, model, path)

The file is safetensors. It holds the token ids, the rows and states of every layer, what the head
holds, and the places that a recurrent model can go back to; its metadata say which model and head
they belong to, and carry a hash of it all.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, cast

import mlx.core as mx

from mtplx.cache import CacheGroup
from mtplx.checkpoints import Checkpoint
from mtplx.errors import FileAccessError, PromptCacheError
from mtplx.files import accessing, replacing
from mtplx.loading.fingerprint import fingerprint
from mtplx.loading.load import LoadedModel
from mtplx.speculation import LayerCache, Snapshot
from mtplx.state import DecodeState

FORMAT = "mtplx prompt cache 1"


def save_prompt_cache(state: DecodeState, model: LoadedModel, path: Path) -> None:
    """Write a state of `model` that no decode is using, in place of what was in the file.

    The file appears whole or not at all. Raises FileAccessError where it cannot be written.
    """
    saved = [state.checkpoint(whole=True), *state.checkpoints]
    arrays = {"token_ids": mx.array(state.token_ids, dtype=mx.int32)}
    for i, checkpoint in enumerate(saved):
        arrays |= {f"{i}.{j}": array for j, array in enumerate(checkpoint.arrays())}
    mx.eval(arrays)
    described = {
        "format": FORMAT,
        "model": _marks(model),
        "kinds": [_kind(layer) for layer in state.cache],
        "states": [_described(checkpoint) for checkpoint in saved],
    }
    text = json.dumps(described)
    digest = _digest(text, arrays)
    # One of no elements has no place in a file; its shape says it all.
    stored = {name: array for name, array in arrays.items() if array.size}
    empty = {name: [list(a.shape), _dtype(a)] for name, a in arrays.items() if not a.size}
    metadata = {"mtplx": text, "digest": digest, "empty": json.dumps(empty)}
    with replacing(path) as part:
        whole = part.with_name("state.safetensors")  # MLX adds the ending where there is none
        try:
            mx.save_safetensors(str(whole), stored, metadata)
        except RuntimeError as error:
            raise FileAccessError(f"Cannot write {path}: {error}") from error
        whole.rename(part)


def load_prompt_cache(
    path: Path, model: LoadedModel, prompt_ids: list[int] | None = None
) -> DecodeState:
    """A state of `model` as it was saved. prompt_ids: as of LoadedModel.new_state.

    Raises FileAccessError where the file cannot be read, PromptCacheError where it is no prompt
    cache, is damaged, or is of another model or head; the file stays as it is.
    """
    described, arrays = _read(path)
    if described["model"] != _marks(model):
        what = "model" if described["model"][0] != _marks(model)[0] else "draft head"
        raise PromptCacheError(
            f"{path} was written with another {what} than {model.name} has here. "
            "Use the one that it belongs to, or another file."
        )
    state = model.new_state(prompt_ids)
    if described["kinds"] != [_kind(layer) for layer in state.cache]:
        raise PromptCacheError(
            f"{path} holds layers of other kinds than {model.name} keeps now. "
            "It was written with other settings or another version of mlx-lm; use another file."
        )
    token_ids = cast("list[int]", arrays["token_ids"].tolist())
    whole, *others = [_checkpoint(d, i, arrays) for i, d in enumerate(described["states"])]
    state.adopt(token_ids, whole, others)
    return state


def _read(path: Path) -> tuple[dict[str, Any], dict[str, mx.array]]:
    """The description and the arrays of a file that is whole."""
    with accessing("read", path):
        path.open("rb").close()
    try:
        loaded: Any = mx.load(str(path), format="safetensors", return_metadata=True)
        arrays, metadata = loaded
        for name, (shape, dtype) in json.loads(metadata["empty"]).items():
            arrays[name] = mx.zeros(shape, getattr(mx, dtype))
        text, digest = metadata["mtplx"], metadata["digest"]
        is_whole = _digest(text, arrays) == digest
        described = json.loads(text)
    except (RuntimeError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise PromptCacheError(
            f"{path} is not a prompt cache of mtplx, or not all of one. Use another file."
        ) from error
    if not is_whole or described["format"] != FORMAT:
        raise PromptCacheError(
            f"{path} is damaged, or of another version of mtplx. Use another file."
        )
    return described, arrays


def _marks(model: LoadedModel) -> list[str | None]:
    """What tells the model, and its head."""
    head = model.head
    return [fingerprint(model.path), None if head is None else fingerprint(head.path)]


def _kind(layer: LayerCache) -> str:
    """What a layer keeps, so that one kind's arrays are never given to another."""
    if isinstance(layer, CacheGroup):
        return f"({' '.join(_kind(member) for member in layer.members)})"
    details = [getattr(layer, name, None) for name in ("window", "bits", "group_size")]
    return " ".join([type(layer).__name__, *(str(d) for d in details if d is not None)])


def _described(checkpoint: Checkpoint) -> dict[str, Any]:
    """A checkpoint without its arrays, for JSON."""
    snapshots = [*checkpoint.layers, *([checkpoint.drafter] if checkpoint.drafter else [])]
    return {
        "length": checkpoint.length,
        "num_layers": len(checkpoint.layers),
        "parts": [[list(map(int, part.numbers)), len(part.arrays)] for part in snapshots],
        "drafter_rows": checkpoint.drafter_rows,
        "is_fed": checkpoint.unseen is not None,
    }


def _checkpoint(described: dict[str, Any], index: int, arrays: dict[str, mx.array]) -> Checkpoint:
    """The checkpoint of which `_described` told, with the arrays that were numbered so."""
    parts, start = [], 0
    for numbers, num_arrays in described["parts"]:
        rows = (arrays[f"{index}.{j}"] for j in range(start, start + num_arrays))
        parts.append(Snapshot(tuple(numbers), tuple(rows)))
        start += num_arrays
    layers, rest = parts[: described["num_layers"]], parts[described["num_layers"] :]
    return Checkpoint(
        described["length"],
        tuple(layers),
        rest[0] if rest else None,
        described["drafter_rows"],
        arrays[f"{index}.{start}"] if described["is_fed"] else None,
    )


def _digest(text: str, arrays: dict[str, mx.array]) -> str:
    """A hash of the description and of every array under its name."""
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {list(array.shape)} {_dtype(array)} ".encode())
        if array.size:
            flat: Any = mx.view(mx.contiguous(array.reshape(-1)), mx.uint8)
            digest.update(memoryview(flat))
    return digest.hexdigest()


def _dtype(array: mx.array) -> str:
    return str(array.dtype).rpartition(".")[2]
