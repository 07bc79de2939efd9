"""The run behind `mtplx train-head`: write text, read text, start, train, measure, store.

Every part leaves its result in the run's folder and is skipped when that is there, so a run that
was interrupted goes on where it stopped.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from mtplx.errors import TrainingError
from mtplx.files import write_atomically
from mtplx.loading.fingerprint import fingerprint
from mtplx.loading.head_file import read_head, write_head
from mtplx.loading.load import LoadedModel
from mtplx.models.head import HeadWeights, Shortlist, dense_head, make_shortlist
from mtplx.models.llama import LlamaTarget
from mtplx.paths import ensure_dir
from mtplx.training.acceptance import HeldOut, Measured, measure
from mtplx.training.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from mtplx.training.examples import Example, batches, frequent_ids, make_example
from mtplx.training.held_out import held_out_replies
from mtplx.training.initialise import initial_parameters
from mtplx.training.loop import adamw, train
from mtplx.training.own_text import Passage, read_texts
from mtplx.training.passages_file import read_passages, write_passages
from mtplx.training.plan import CHUNK_TOKENS, Plan
from mtplx.training.prompts import text_windows
from mtplx.training.worker import CACHE_BYTES, CHUNK_LENGTH, chunk_path

CHECKPOINT = "checkpoint.safetensors"
STEPS_PER_CHECKPOINT = 100
INITIAL_WINDOWS = 160
WINDOW = 256


@dataclass(frozen=True, slots=True)
class Report:
    """Something to show: what is going on, how far it is, and figures."""

    what: str
    done: int
    total: int
    figures: str = ""


Tell = Callable[[Report], None]
Results = dict[tuple[str, float], Measured]


@dataclass(frozen=True, slots=True)
class Trained:
    """A finished run: the head's file, held-out acceptance, and the shifted control."""

    head: Path
    results: Results
    control: Measured

    def lines(self) -> list[str]:
        """The results as a table, per position and as tokens per round for k = 1, 2, …"""
        rows = [f"{'held-out':<16} accepted per position      tokens per round, k = 1…"]
        for (kind, temperature), m in self.results.items():
            each = " ".join(f"{x:.3f}" for x in m.per_position)
            rounds = " ".join(f"{x:.2f}" for x in m.tokens_per_round)
            rows.append(f"{kind:<9} T={temperature:<4g} {each}    {rounds}")
        each = " ".join(f"{x:.3f}" for x in self.control.per_position)
        return [*rows, f"control, targets shifted by one: {each} (must be near zero)"]


def run(plan: Plan, model: LoadedModel, tell: Tell) -> Trained:
    """Train a head for `model`. TrainingError if it cannot."""
    target = model.target
    if not isinstance(target, LlamaTarget):
        raise TrainingError(f"{plan.model} is not a llama-type model; heads are trained for those.")
    if target.context_length < CHUNK_LENGTH:
        raise TrainingError(f"{plan.model} has a context below {CHUNK_LENGTH} tokens.")
    mx.set_cache_limit(CACHE_BYTES)
    ensure_dir(plan.folder)
    write_own_text(plan, tell)
    read_ordinary_text(plan, model, target, tell)
    held_out = held_out_replies(
        plan.folder, model, target, lambda *progress: tell(Report(*progress))
    )
    passages = read_passages(
        sorted(plan.folder.glob("own-*.npz")) + sorted(plan.folder.glob("text-*.npz"))
    )
    checkpoint = _start(plan, target, passages)
    shortlist = make_shortlist(target.lm_head, checkpoint.shortlist)
    examples = _examples(passages, shortlist, tell)
    streams = [mx.default_stream(mx.default_device())]
    if not mx.metal.is_available():
        streams.append(mx.new_stream(mx.cpu))
    lesson = Lesson(plan, target, shortlist, examples, held_out, streams)
    checkpoint = _train(lesson, checkpoint, tell)
    path = plan.folder / "head.safetensors"
    metadata = {"trunk": fingerprint(model.path), "model": plan.model}
    write_head(path, checkpoint.parameters, target.dims, checkpoint.shortlist, metadata)
    head = read_head(path, target.dims).weights
    results = measured(target, head, shortlist, held_out)
    key = ("code", 0.0)
    control = measure(target, head, shortlist, held_out[key], key[1], shift=1)
    return Trained(path, results, control)


def finish(head: Path, path: Path) -> None:
    """Put the head of a run where it will be found."""
    write_atomically(path, head.read_bytes())


def write_own_text(plan: Plan, tell: Tell) -> None:
    """Have worker processes write the chunks that are missing."""
    paths = [chunk_path(plan.folder, number) for number in range(plan.num_chunks)]

    def done() -> int:
        return sum(path.exists() for path in paths) * CHUNK_TOKENS

    total = len(paths) * CHUNK_TOKENS
    if done() == total:
        return
    command = [sys.executable, "-m", "mtplx.training.worker", plan.model, str(plan.folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    workers = [
        subprocess.Popen(
            [*command, str(i), str(plan.num_workers), str(len(paths)), str(plan.seed)],
            env=environment,
        )
        for i in range(plan.num_workers)
    ]
    try:
        while any(worker.poll() is None for worker in workers):
            tell(Report("writing its own text", done(), total))
            time.sleep(1)
    finally:
        for worker in workers:
            worker.terminate()
            worker.wait()
    if done() < total:
        codes = ", ".join(str(worker.returncode) for worker in workers)
        raise TrainingError(f"The processes that write text stopped early (exit codes {codes}).")


def read_ordinary_text(plan: Plan, model: LoadedModel, target: LlamaTarget, tell: Tell) -> None:
    """Hidden states of the plan's text files, 64 windows a chunk."""

    def encode(text: str) -> list[int]:
        return model.tokenizer.encode(text, parse_special=False)

    wanted = plan.text_tokens // CHUNK_LENGTH
    windows = text_windows(plan.texts, encode, CHUNK_LENGTH, plan.seed)
    for number, start in enumerate(range(0, wanted, 64)):
        chunk = [w for w, _ in zip(windows, range(min(64, wanted - start)), strict=False)]
        path = plan.folder / f"text-{number:05d}.npz"
        if not chunk:
            return
        if path.exists():
            continue
        passages: list[Passage] = []
        for i in range(0, len(chunk), 8):
            passages += read_texts(target, chunk[i : i + 8], "prose")
            tell(Report("reading text", (start + i) * CHUNK_LENGTH, wanted * CHUNK_LENGTH))
        write_passages(path, passages)


def _start(plan: Plan, target: LlamaTarget, passages: Sequence[Passage]) -> Checkpoint:
    path = plan.folder / CHECKPOINT
    if path.exists():
        return read_checkpoint(path)
    shortlist = frequent_ids(passages, target.vocab_size, plan.shortlist_size)
    windows = [p.token_ids[:WINDOW].tolist() for p in passages[:INITIAL_WINDOWS]]
    parameters = initial_parameters(target, windows, num_blocks=plan.num_blocks)
    return Checkpoint(parameters, adamw(parameters), shortlist, 0, 0)


def _examples(passages: Sequence[Passage], shortlist: Shortlist, tell: Tell) -> list[Example]:
    examples = []
    for i, passage in enumerate(passages):
        examples.append(make_example(passage, shortlist))
        if i % 16 == 0:
            tell(Report("preparing examples", i, len(passages)))
    return examples


@dataclass(frozen=True, slots=True)
class Lesson:
    """What every stretch of training needs and none of them changes."""

    plan: Plan
    target: LlamaTarget
    shortlist: Shortlist
    examples: Sequence[Example]
    held_out: HeldOut
    streams: Sequence[mx.Stream]


def _train(lesson: Lesson, checkpoint: Checkpoint, tell: Tell) -> Checkpoint:
    """All stages from the checkpoint on, a checkpoint and a measurement after each stretch."""
    plan = lesson.plan
    while checkpoint.stage < len(plan.stages):
        checkpoint = _stretch(lesson, checkpoint, tell)
        head = dense_head(checkpoint.parameters, plan.num_blocks)
        figures = summary(measured(lesson.target, head, lesson.shortlist, lesson.held_out))
        where = f"stage {checkpoint.stage} step {checkpoint.step}"
        _log(plan.folder / "log.txt", f"{where} {figures}")
        tell(Report("training", 0, 0, figures))
        write_checkpoint(plan.folder / CHECKPOINT, checkpoint)
    return checkpoint


def _stretch(lesson: Lesson, checkpoint: Checkpoint, tell: Tell) -> Checkpoint:
    """Some steps of the current stage. Their batches follow from the seed and the first step
    alone, so that a run which was interrupted ends like one that was not."""
    plan, number, first = lesson.plan, checkpoint.stage, checkpoint.step
    stage = plan.stages[number]
    last = min(first + STEPS_PER_CHECKPOINT, stage.num_steps)
    data = batches(
        lesson.examples,
        num_windows=stage.num_windows,
        num_anchors=stage.num_anchors,
        depth=len(stage.weights),
        seed=(plan.seed * 101 + number) * 1_000_003 + first,
    )
    state, parameters = checkpoint.optimiser, checkpoint.parameters
    steps = train(
        parameters, state, stage, data, lesson.target.dims, lesson.target.embedding,
        lesson.shortlist, lesson.streams, range(first, last),
    )  # fmt: skip
    for step, loss, parameters in steps:
        what = f"training {len(stage.weights)} deep"
        tell(Report(what, step + 1, stage.num_steps, f"loss {loss:.3f}"))
    done = last == stage.num_steps
    number, last = (number + 1, 0) if done else (number, last)
    return Checkpoint(parameters, state, checkpoint.shortlist, number, last)


def measured(
    target: LlamaTarget, head: HeadWeights, shortlist: Shortlist, held_out: HeldOut
) -> Results:
    """Held-out acceptance by class and temperature."""
    return {
        key: measure(target, head, shortlist, replies, key[1]) for key, replies in held_out.items()
    }


def summary(results: Results) -> str:
    """One line: per class and temperature, acceptance at position 1 and tokens per round at 3."""
    return "  ".join(
        f"{kind} T={temperature:g} {m.per_position[0]:.3f}/{m.tokens_per_round[2]:.2f}"
        for (kind, temperature), m in results.items()
    )


def _log(path: Path, line: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
