"""The folder of a training run: whose it is, and what the files in it were made with.

`plan.json` holds for each kind of file everything that its content follows from. Files that were
made with something else are never used: text of another model or half a training with other
options would show in nothing but a bad head.
"""

import hashlib
import json
import shutil
from codecs import getincrementaldecoder
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast, get_args

from mtplx.errors import TrainingError
from mtplx.files import accessing, write_atomically
from mtplx.paths import ensure_dir
from mtplx.prompts import shipped_prompts
from mtplx.training.engine import Engine
from mtplx.training.plan import Plan

OWN, TEXT, HELD_OUT = "own-*.npz", "text-*.npz", "held-out-*.npz"
CHECKPOINT, HEAD, LOG, PLAN = "checkpoint.safetensors", "head.safetensors", "log.txt", "plan.json"
FORMAT = 1  # goes up when the same options begin to mean something else

Made = dict[str, str | int]
"""What a file was made with: option or other circumstance -> value."""


def chunk_path(folder: Path, number: int) -> Path:
    """Where a chunk of the trunk's own text goes."""
    return folder / OWN.replace("*", f"{number:05d}")


def text_path(folder: Path, number: int) -> Path:
    """Where a chunk of ordinary text goes."""
    return folder / TEXT.replace("*", f"{number:05d}")


def passage_paths(plan: Plan) -> list[Path]:
    """All text that the plan trains on, once it is there."""
    own = [chunk_path(plan.folder, number) for number in range(plan.num_chunks)]
    return own + sorted(plan.folder.glob(TEXT))


@contextmanager
def opened_folder(plan: Plan, trunk: str) -> Iterator[None]:
    """The plan's folder, for this process alone, holding only what this plan can go on with.

    trunk: the model's fingerprint. Raises TrainingError where another process has the folder, or
    its files were made with other options; FileAccessError where it cannot be written.
    """
    ensure_dir(plan.folder)
    with _only_one(plan.folder):
        _remove_leftovers(plan.folder)
        before = _made_before(plan.folder)
        wanted = made_with(replace(plan, engine=_writing_engine(plan, before)), trunk)
        _check(plan.folder, wanted, before)
        content = json.dumps({"format": FORMAT, "made_with": wanted}, indent=1)
        write_atomically(plan.folder / PLAN, content.encode())
        yield


def made_with(plan: Plan, trunk: str) -> dict[str, Made]:
    """For each kind of file what it follows from, by the names that a user knows."""
    base: Made = {"model": trunk, "length": plan.passage_length}
    own: Made = {
        **base,
        "--seed": plan.seed,
        "--engine": plan.engine,
        "rows": plan.rows_per_chunk,
    }
    text: Made = {
        **base,
        "--seed": plan.seed,
        "--text-tokens": plan.text_tokens,
        "--text": digest_texts(plan.texts) if plan.text_tokens else "none",
    }
    prompts = "\0".join(f"{prompt.kind} {prompt.text}" for prompt in shipped_prompts())
    held_out: Made = {
        "model": trunk,
        "prompts": _digest(prompts.encode()),
        "prompts per class": plan.prompts_per_class or "all",
        "reply tokens": plan.reply_tokens,
    }
    checkpoint: Made = {
        **own,
        **text,
        "--own-tokens": plan.num_chunks * plan.chunk_tokens,
        "--shortlist": plan.shortlist_size,
        "--blocks": plan.num_blocks,
        "--steps": plan.one_step,
        "--unrolled-steps": plan.unrolled,
        "windows": plan.num_windows,
        "anchors": plan.num_anchors,
    }
    return {OWN: own, TEXT: text, HELD_OUT: held_out, CHECKPOINT: checkpoint}


def digest_texts(paths: Sequence[Path]) -> str:
    """A hash of what is in the files. TrainingError for one that is not UTF-8 text."""
    digest = hashlib.blake2b(digest_size=16)
    for path in paths:
        if path.exists() and not path.is_file():
            raise TrainingError(f"{path} is not a file. Give text files, each with --text.")
        decoder = getincrementaldecoder("utf-8")()
        with accessing("read", path), path.open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
                _decode(path, decoder, piece)
        _decode(path, decoder, b"", final=True)
        digest.update(b"\xff")  # in no UTF-8 text: where one file ends matters
    return digest.hexdigest()


def _decode(path: Path, decoder: object, piece: bytes, *, final: bool = False) -> None:
    try:
        decoder.decode(piece, final)  # type: ignore[attr-defined]  # codecs.IncrementalDecoder
    except UnicodeDecodeError as error:
        raise TrainingError(
            f"{path} is not UTF-8 text ({error.reason}). Convert it, or leave it out."
        ) from error


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _writing_engine(plan: Plan, before: dict[str, Made]) -> Engine:
    """The engine that writes the plan's own text, or that wrote it, once all of it is there.

    Engines draw other text; which one trains on it makes no difference to any file's use.
    """
    whole = all(chunk_path(plan.folder, number).exists() for number in range(plan.num_chunks))
    wrote = before.get(OWN, {}).get("--engine")
    return cast("Engine", wrote) if whole and wrote in get_args(Engine) else plan.engine


def _check(folder: Path, wanted: dict[str, Made], before: dict[str, Made]) -> None:
    """TrainingError if there are files that were made with something else than is wanted."""
    found = [
        f"{folder / pattern} {_difference(before.get(pattern), made)}"
        for pattern, made in wanted.items()
        if any(folder.glob(pattern)) and before.get(pattern) != made
    ]
    if found:
        raise TrainingError(
            f"This is not the run that was begun in {folder}. Give the same options as before, or "
            f"another --folder, or delete these to have them made anew: {'; '.join(found)}."
        )


def _difference(before: Made | None, wanted: Made) -> str:
    if before is None:
        return "(made with unknown options)"
    names = [name for name in {**wanted, **before} if before.get(name) != wanted.get(name)]
    told = (f"{name} {before.get(name, '?')}, now {wanted.get(name, '?')}" for name in names)
    return f"(made with {', '.join(told)})"


def _made_before(folder: Path) -> dict[str, Made]:
    path = folder / PLAN
    if not path.exists():
        return {}
    with accessing("read", path):
        content = path.read_bytes()
    try:
        stored = json.loads(content)
        return dict(stored["made_with"]) if stored["format"] == FORMAT else {}
    except (ValueError, KeyError, TypeError) as error:
        raise TrainingError(
            f"{path} does not say what the files beside it were made with: {error}. "
            "Give another --folder, or delete this one."
        ) from error


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which goes with this process however it ends."""
    import fcntl

    path = folder / ".lock"
    with accessing("write", path):
        lock = path.open("ab")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TrainingError(
                f"Another process is training in {folder}. Wait for it, or give another --folder."
            ) from error
        except OSError:
            pass  # some network file systems have no locks
        yield


def _remove_leftovers(folder: Path) -> None:
    """Remove the temporary folders of processes that were killed while they wrote."""
    for pattern in (OWN, TEXT, HELD_OUT, CHECKPOINT, HEAD, PLAN):
        for left in folder.glob(f".{pattern}-*"):
            shutil.rmtree(left, ignore_errors=True)
