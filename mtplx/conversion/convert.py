"""Converting a checkpoint: plan, write file by file, compare with the source, take the place.

Each file is kept once it is whole, so that a conversion that was stopped, by whatever, goes on
with the first file that is missing.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

import mtplx
from mtplx.conversion.plan import (
    Branch,
    Options,
    PlannedFile,
    make_parts,
    plan_branch,
    plan_digest,
)
from mtplx.conversion.record import Record, Task
from mtplx.conversion.side_files import INDEX, copy_side_files, write_config, write_index
from mtplx.conversion.source import Source, open_source
from mtplx.conversion.tensor_file import write_tensors
from mtplx.conversion.verify import Deviation, verify_file
from mtplx.conversion.workplace import (
    check_places,
    check_room,
    resume,
    take_place,
    tidy,
    work_folder,
    working_in,
)
from mtplx.errors import CheckpointError
from mtplx.files import accessing
from mtplx.loading.fingerprint import fingerprint
from mtplx.models.quantisation import Packing

METADATA = {"format": "mlx", "mtplx": "1"}

Tell = Callable[[str, int, int], None]
"""Called with what is being done, bytes done and bytes in all."""
Deviations = Mapping[Packing | None, Deviation]


@dataclass(frozen=True, slots=True)
class Conversion:
    """What was made.

    no_head_reason: why there is no head, in one line; None where there is one.
    num_kept: files that an earlier run had finished. damaged: those that were not whole any more.
    trunk, head: what was found by comparing, for each packing, None for what was kept as it is.
    """

    out: Path
    family: str | None
    num_head_modules: int
    no_head_reason: str | None
    source_bytes: int
    num_bytes: int
    num_files: int
    num_kept: int
    damaged: list[str]
    trunk: Deviations
    head: Deviations


@dataclass(frozen=True, slots=True)
class _Job:
    """A branch and the files that become of it."""

    branch: Branch
    files: list[PlannedFile]


def convert(
    folder: Path,
    out: Path,
    options: Options,
    *,
    force: bool = False,
    tell: Tell,
    warn: Callable[[str], None] = lambda told: None,
) -> Conversion:
    """Write the checkpoint in `folder` as an MLX checkpoint to `out`, its MTP head with it.

    force: replace a checkpoint that stands at `out`, and what is there of another conversion to it.
    What was finished of this same conversion is kept either way. warn: told, before anything is
    written, why there will be no head.
    Raises UsageError, CheckpointError and its kinds, and FileAccessError.
    """
    check_places(folder, out, force=force)
    work = work_folder(out)
    with accessing("read", folder):
        source = open_source(folder)
        jobs = _jobs(source, options)
        task = _task(source, jobs, options)
    if source.no_head_reason is not None:
        warn(source.no_head_reason)
    with working_in(work):
        record, damaged = resume(work, task, force=force)
        num_kept = len(record.written)
        _write(work, jobs, record, tell)
        again = open_source(folder)  # writing took its tensors out of the first one
        found = _verify(work, _jobs(again, options), tell)
        _finish(work, source, jobs, options)
        take_place(work, out)
    return _made(out, source, jobs, found, kept=(num_kept, damaged))


def _made(
    out: Path,
    source: Source,
    jobs: list[_Job],
    found: list[dict[Packing | None, Deviation]],
    *,
    kept: tuple[int, list[str]],
) -> Conversion:
    files = [file for job in jobs for file in job.files]
    return Conversion(
        out=out,
        family=source.family,
        num_head_modules=source.num_head_modules,
        no_head_reason=source.no_head_reason,
        source_bytes=source.num_bytes,
        num_bytes=sum(file.num_bytes for file in files),
        num_files=len(files),
        num_kept=kept[0],
        damaged=kept[1],
        trunk=found[0],
        head=found[1] if len(found) > 1 else {},
    )


def _jobs(source: Source, options: Options) -> list[_Job]:
    """The trunk's, then the head's where there is one."""
    packings = (options.trunk_packing(), options.head_packing())
    return [
        _Job(branch, plan_branch(branch, packing, options.dtype, options.shard_bytes))
        for branch, packing in zip((source.trunk, source.head), packings, strict=True)
        if branch is not None
    ]


def _task(source: Source, jobs: list[_Job], options: Options) -> Task:
    config = (source.folder / "config.json").read_bytes()
    return Task(
        source=fingerprint(source.folder),
        config=hashlib.sha256(config).hexdigest(),
        plan=plan_digest(file for job in jobs for file in job.files),
        options=asdict(options),
    )


def _write(work: Path, jobs: list[_Job], record: Record, tell: Tell) -> None:
    """Every file that the record lacks."""
    missing = [(job, file) for job in jobs for file in job.files if file.name not in record.written]
    total = sum(file.num_bytes for _, file in missing)
    check_room(work, total)
    done = 0
    for job, file in missing:
        arrays = _arrays(job.branch, file, lambda so_far: tell("writing", so_far, total), done)
        parts = [part for unit in file.units for part in unit.parts]
        with accessing("write", work / file.name):
            digest = write_tensors(work / file.name, parts, arrays, METADATA)
        record.written[file.name] = digest
        record.save(work)
        done += file.num_bytes


def _arrays(
    branch: Branch, file: PlannedFile, tell: Callable[[int], None], done: int
) -> Iterator[mx.array]:
    """What a file holds, one unit after the other, each let go when the next is asked for."""
    for unit in file.units:
        made = make_parts(unit, branch.weights.pop(unit.source))
        try:
            mx.eval(made)
        except RuntimeError as error:
            raise CheckpointError(
                f"{unit.source} cannot be read: {error}. Fetch the checkpoint again."
            ) from error
        yield from made
        done += unit.num_bytes
        tell(done)
        del made
        mx.clear_cache()


def _verify(work: Path, jobs: list[_Job], tell: Tell) -> list[dict[Packing | None, Deviation]]:
    """What comparing found, for each job."""
    total = sum(file.num_bytes for job in jobs for file in job.files)
    done, found = 0, []
    for job in jobs:
        sums: dict[Packing | None, Deviation] = {}
        for file in job.files:
            for packing, deviation in verify_file(
                work / file.name, file, job.branch.weights
            ).items():
                sums[packing] = sums.get(packing, Deviation()) + deviation
            done += file.num_bytes
            tell("comparing", done, total)
        found.append(sums)
    return found


def _finish(work: Path, source: Source, jobs: list[_Job], options: Options) -> None:
    """Everything beside the weights; whatever else lies in the folder goes."""
    files = [file for job in jobs for file in job.files]
    copied = copy_side_files(source.folder, work)
    write_index(work, files)
    head = {"family": source.family, "modules": source.num_head_modules} if source.head else None
    about: dict[str, Any] = {"version": mtplx.__version__, "head": head}
    write_config(work, source.config, files, options.trunk_packing(), options.dtype, about)
    tidy(work, copied | {file.name for file in files} | {"config.json", INDEX})
