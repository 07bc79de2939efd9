"""`mtplx inspect`: what a checkpoint is, holds and needs."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtplx.cli.choose import DEFAULT_MODEL, chosen_model, complete_model
from mtplx.cli.model import find_model
from mtplx.cli.options import Head
from mtplx.cli.output import write, write_json
from mtplx.errors import CheckpointError

if TYPE_CHECKING:
    from mtplx.loading.describe import Description


@dataclass(frozen=True, slots=True)
class Loaded:
    """What loading took, and which head it found.

    peak_bytes: the most that the process held.
    """

    load_s: float
    peak_bytes: int
    head: str | None
    no_head_reason: str | None


def inspect(
    model: Annotated[
        str,
        typer.Argument(
            help="A GGUF file, a folder of safetensors, a Hugging Face id or an alias.",
            callback=chosen_model,
            autocompletion=complete_model,
        ),
    ] = DEFAULT_MODEL,
    head: Head = None,
    load: Annotated[
        bool,
        typer.Option("--load/--no-load", help="Measure by loading, or go by the headers alone."),
    ] = True,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what a checkpoint holds and what memory it needs."""
    import mlx.core as mx

    from mtplx.loading.describe import describe

    path = find_model(model)
    description = describe(path, head=head, packed=mx.metal.is_available())
    loaded, failure = None, None
    if load:
        try:
            loaded = _load(path, head)
        except CheckpointError as error:
            failure = error  # what is known is printed all the same
    if json:
        loading = asdict(loaded) if loaded is not None else None
        write_json({**asdict(description), "loaded": loading})
    else:
        write(_as_text(description, loaded))
    if failure is not None:
        raise failure


def _load(path: Path, head: Path | None) -> Loaded:
    from mtplx.loading.load import load
    from mtplx.loading.memory import peak_resident_bytes

    model = load(path, head=head)
    return Loaded(
        load_s=model.load_s,
        peak_bytes=peak_resident_bytes(),
        head=str(model.head.path) if model.head is not None else None,
        no_head_reason=model.no_head_reason,
    )


def _as_text(description: "Description", loaded: Loaded | None) -> str:
    facts = {
        "path": f"{description.path} ({description.container})",
        "architecture": description.architecture or "not stated",
        "licence": description.licence or "not stated",
        "parameters": f"{description.num_parameters / 1e6:,.1f} M",
        "vocabulary": _count(description.vocab_size, "tokens"),
        "context": _count(description.context_length, "tokens"),
        "fingerprint": description.trunk,
        "MTP head": _head(description, loaded),
    }
    lines = [description.name or description.path.name]
    lines += [f"  {name:<14}{value}" for name, value in facts.items()]
    lines += ["", *_tensors(description), "", *_memory(description, loaded)]
    return "\n".join(lines) + "\n"


def _head(description: "Description", loaded: Loaded | None) -> str:
    if loaded is not None:
        told = loaded.head or f"none: {loaded.no_head_reason}"
    elif description.head is not None:
        told = f"{description.head} (found, not checked)"
    else:
        told = "none was found; `mtplx train-head` makes one"
    if description.num_mtp_tensors:
        told += f" The checkpoint brings {description.num_mtp_tensors} MTP tensors of its own."
    return told


def _tensors(description: "Description") -> list[str]:
    lines = [f"{'Tensors':<16}{'count':>7}{'on disk':>14}{'in memory':>14}"]
    for kind in description.kinds:
        note = "" if kind.readable else "  (not readable yet)"
        sizes = f"{_mb(kind.disk_bytes):>14}{_mb(kind.held_bytes):>14}"
        lines.append(f"  {kind.type:<14}{kind.count:>7,}{sizes}{note}")
    return lines


def _memory(description: "Description", loaded: Loaded | None) -> list[str]:
    need = description.need
    peak = (
        (need.loading_peak_bytes, "estimated")
        if loaded is None
        else (loaded.peak_bytes, "measured")
    )
    parts = [
        ("weights", _mb(need.weights_bytes)),
        ("MTP head", _mb(need.head_bytes)),
        ("its shortlist", _mb(need.shortlist_bytes)),
        (
            "1,000 tokens",
            "unknown"
            if need.cache_bytes_per_token is None
            else _mb(1000 * need.cache_bytes_per_token),
        ),
        ("the program", _mb(need.process_bytes)),
        ("while loading", f"{_mb(peak[0])} at most, {peak[1]}"),
    ]
    if loaded is not None:
        parts.append(("load time", f"{loaded.load_s:.1f} s, measured"))
    return ["Memory", *(f"  {name:<14}{value}" for name, value in parts)]


def _mb(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB"


def _count(number: int | None, what: str) -> str:
    return "not stated" if number is None else f"{number:,} {what}"
