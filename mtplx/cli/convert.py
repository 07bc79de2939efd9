"""`mtplx convert`: a Hugging Face checkpoint as an MLX checkpoint that keeps its MTP head."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mtplx.cli.choose import complete_model
from mtplx.cli.interrupts import insistent
from mtplx.cli.model import find_model
from mtplx.cli.output import is_terminal, notice, write
from mtplx.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mtplx.conversion.convert import Conversion, Tell
    from mtplx.conversion.verify import Deviation
    from mtplx.models.quantisation import Packing

LINE_EVERY_S = 10.0  # where nobody looks at a bar

Source = Annotated[
    str,
    typer.Argument(
        metavar="HF_DIR",
        help="A folder of safetensors or a Hugging Face id: the original checkpoint.",
        autocompletion=complete_model,
    ),
]
Out = Annotated[
    Path, typer.Argument(metavar="OUT", help="The folder that the MLX checkpoint goes to.")
]
Bits = Annotated[
    int | None,
    typer.Option(
        metavar="1|2|3|4|5|6|8",
        help="Bits for each weight of the trunk.",
        show_default="matrices stay as they are",
    ),
]
GroupSize = Annotated[
    int, typer.Option(metavar="32|64|128", help="How many weights share a scale and a bias.")
]
HeadBits = Annotated[
    int | None,
    typer.Option(
        metavar="1|2|3|4|5|6|8",
        help="Bits for each weight of the MTP head.",
        show_default="8 where --bits is given",
    ),
]
Dtype = Annotated[
    Literal["float16", "bfloat16", "float32"] | None,
    typer.Option(
        help="What tensors that are not packed, and scales, are stored in.",
        show_default="each as in the original",
    ),
]
ShardSize = Annotated[int, typer.Option(metavar="MB", min=1, help="The size of a file, at most.")]
Force = Annotated[
    bool,
    typer.Option("--force", help="Replace a checkpoint at OUT, or start over a stopped one."),
]


def convert(
    source: Source,
    out: Out,
    bits: Bits = None,
    group_size: GroupSize = 64,
    head_bits: HeadBits = None,
    dtype: Dtype = None,
    shard_size: ShardSize = 2048,
    force: Force = False,
) -> None:
    """Make an MLX checkpoint that keeps its MTP head.

    One tensor after the other, so that a model larger than the memory can be converted. Everything
    written is read back and compared with the original. Ctrl-C stops it; the same command goes on
    where it stopped.
    """
    from mtplx.conversion.convert import convert as convert_folder
    from mtplx.conversion.plan import Options

    options = Options(bits, group_size, head_bits, dtype, shard_size * 1_000_000)
    options.trunk_packing(), options.head_packing()  # before anything is fetched
    folder = find_model(source)
    if folder.is_file():
        raise UsageError(
            f"{folder} is a GGUF file, which MTPLX loads as it is. Give a folder of safetensors."
        )
    with _shown() as tell, insistent(tell) as told:
        made = convert_folder(
            folder,
            out,
            options,
            force=force,
            tell=told,
            warn=lambda reason: notice(f"There will be no MTP head: {reason}"),
        )
    write(_as_text(made))


def _as_text(made: "Conversion") -> str:
    files = _count(made.num_files, "file")
    lines = [f"{made.out}: {files}, {_size(made)}, compared with the original."]
    if made.num_kept:
        kept = _count(made.num_kept, "file")
        lines.append(f"  kept         {kept} that an earlier run had finished")
    lines += [f"  made again   {name}, which was damaged" for name in made.damaged]
    lines += _compared("trunk", made.trunk)
    lines += _compared("MTP head", made.head)
    if made.no_head_reason is not None:
        lines.append(f"  MTP head     none: {made.no_head_reason}")
    else:
        modules = _count(made.num_head_modules, "module")
        lines.append(f"  family       {made.family}, {modules} in the head")
    return "\n".join(lines) + "\n"


def _size(made: "Conversion") -> str:
    share = made.num_bytes / made.source_bytes
    return f"{made.num_bytes / 1e6:,.1f} MB of {made.source_bytes / 1e6:,.1f} MB ({share:.0%})"


def _compared(what: str, found: "Mapping[Packing | None, Deviation]") -> list[str]:
    """A line for each packing: what it is, how much of it, and how far it is from the original."""
    lines = []
    for packing, deviation in found.items():
        told = "as they were, equal bit for bit"
        if packing is not None:
            told = f"{packing}, off by {deviation.relative:.2%} (root mean square)"
        size = f"{deviation.num_bytes / 1e6:,.1f} MB"
        tensors = _count(deviation.num_matrices, "tensor")
        lines.append(f"  {what:<13}{tensors}, {size}: {told}")
    return lines


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


@contextmanager
def _shown() -> Iterator["Tell"]:
    """Progress as a bar on a terminal, elsewhere as a line now and then."""
    if not is_terminal(sys.stderr):
        yield _Lines().tell
        return
    import rich.console
    import rich.progress as parts

    with parts.Progress(
        parts.TextColumn("{task.description}"),
        parts.BarColumn(),
        parts.DownloadColumn(),
        parts.TimeRemainingColumn(),
        console=rich.console.Console(stderr=True),
        transient=True,
    ) as progress:
        tasks: dict[str, parts.TaskID] = {}

        def tell(what: str, done_bytes: int, total_bytes: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what)
            progress.update(tasks[what], completed=done_bytes, total=total_bytes)

        yield tell


class _Lines:
    """Each part of the work when it begins, then every few seconds."""

    def __init__(self) -> None:
        self._what, self._told_s = "", 0.0

    def tell(self, what: str, done_bytes: int, total_bytes: int) -> None:
        now_s = time.monotonic()
        if what != self._what or now_s - self._told_s >= LINE_EVERY_S:
            self._what, self._told_s = what, now_s
            notice(f"{what}: {done_bytes / 1e6:,.0f} of {total_bytes / 1e6:,.0f} MB")
