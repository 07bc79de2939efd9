"""`mtplx inspect`: what a checkpoint is, holds and needs."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtplx.cli.calibration import as_json, as_text, calibrated
from mtplx.cli.choose import DEFAULT_MODEL, chosen_model, complete_model
from mtplx.cli.model import find_model
from mtplx.cli.options import Head
from mtplx.cli.output import write, write_json
from mtplx.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    from mtplx.loading.description import Description, NativeHeadFacts
    from mtplx.loading.load import LoadedModel


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
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="Replay a text to see whether its MTP head is fed what it was trained on.",
        ),
    ] = False,
    text: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="What --calibrate replays.",
            show_default="some 200 tokens that the model writes",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what a checkpoint holds and what memory it needs."""
    if calibrate and not load:
        raise UsageError("--calibrate runs the model, so it takes more than --no-load allows.")
    if text is not None and not calibrate:
        raise UsageError("--text is what --calibrate replays; give both.")
    import mlx.core as mx

    from mtplx.loading.describe import describe

    path = find_model(model)
    description = describe(path, head=head, packed=mx.metal.is_available())
    model_loaded, loaded, failure = None, None, None
    if load:
        try:
            model_loaded, loaded = _load(path, head)
        except CheckpointError as error:
            failure = error  # what is known is printed all the same
    if json:
        loading = asdict(loaded) if loaded is not None else None
        report = as_json(calibrated(model_loaded, text)) if calibrate and model_loaded else None
        write_json({**asdict(description), "loaded": loading, "calibration": report})
    else:
        write(_described(description, loaded))
        if calibrate and model_loaded is not None:
            write(as_text(calibrated(model_loaded, text)))
    if failure is not None:
        raise failure


def _load(path: Path, head: Path | None) -> "tuple[LoadedModel, Loaded]":
    from mtplx.loading.load import load
    from mtplx.loading.memory import peak_resident_bytes

    model = load(path, head=head)
    return model, Loaded(
        load_s=model.load_s,
        peak_bytes=peak_resident_bytes(),
        head=str(model.head.path) if model.head is not None else None,
        no_head_reason=model.no_head_reason,
    )


def _described(description: "Description", loaded: Loaded | None) -> str:
    facts = {
        "path": f"{description.path} ({description.container})",
        "architecture": description.architecture or "not stated",
        "licence": description.licence or "not stated",
        "parameters": _millions(description.num_parameters),
        "vocabulary": _count(description.vocab_size, "tokens"),
        "context": _count(description.context_length, "tokens"),
        "fingerprint": description.trunk,
        **({"family": description.family} if description.family is not None else {}),
        "MTP head": _head(description, loaded),
        **({"expanded": description.expanded} if description.expanded is not None else {}),
    }
    if description.native_head is not None:
        facts |= _native(description.native_head)
    lines = [description.name or description.path.name]
    lines += [f"  {name:<14}{value}" for name, value in facts.items()]
    lines += ["", *_tensors(description), "", *_memory(description, loaded)]
    return "\n".join(lines) + "\n"


def _head(description: "Description", loaded: Loaded | None) -> str:
    own = description.native_head
    if loaded is not None and loaded.head is None:
        return f"none: {loaded.no_head_reason}"
    if own is not None:
        where = ", ".join(file.name for file in own.files)
        lies = f"embedded in {where}" if own.embedded else f"in a file of its own, {where}"
        modules = _count(own.num_modules, "module" if own.num_modules == 1 else "modules")
        return f"{modules}, {_mb(own.num_bytes)}, {lies}"
    if loaded is not None:
        return str(loaded.head)
    if description.head is not None:
        return f"{description.head} (found, not checked)"
    return f"none: {description.no_head_reason or 'it was not found; `mtplx train-head` makes one'}"


def _native(head: "NativeHeadFacts") -> dict[str, str]:
    """What feeds a head, and where config.json says something else of it."""
    side = "before" if head.hidden_stage == "before_norm" else "after"
    fed = {"fed by": f"the trunk's hidden state {side} its final norm"}
    return fed if head.note is None else fed | {"note": head.note}


def _millions(number: int | None) -> str:
    return "not known" if number is None else f"{number / 1e6:,.1f} M"


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
        ("fixed state", _mb(need.state_bytes)),
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
