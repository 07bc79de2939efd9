"""The stages of training with their checkpoints and measurements, from wherever they stopped."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mtplx.files import accessing
from mtplx.models.head import dense_head
from mtplx.models.llama import LlamaTarget
from mtplx.models.shortlist import Shortlist
from mtplx.training.acceptance import HeldOut, measure_judged
from mtplx.training.checkpoint import Checkpoint, write_checkpoint
from mtplx.training.examples import Example, batches
from mtplx.training.loop import Gradients, train
from mtplx.training.plan import Plan
from mtplx.training.run_folder import CHECKPOINT, LOG


@dataclass(frozen=True, slots=True)
class Report:
    """Something to show: what is going on, how far it is, and figures.

    figures: belong to the progress. result: a line that stays.
    """

    what: str
    done: int
    total: int
    figures: str = ""
    result: str = ""


Tell = Callable[[Report], None]


@dataclass(frozen=True, slots=True)
class Lesson:
    """What all stages share and none of them changes."""

    plan: Plan
    target: LlamaTarget
    shortlist: Shortlist
    gradients: Gradients
    examples: Sequence[Example]
    held_out: HeldOut


def learn(lesson: Lesson, checkpoint: Checkpoint, tell: Tell) -> Checkpoint:
    """Train from the checkpoint to the end of the last stage.

    A checkpoint is stored every so many steps, at the end of a stage, and on a KeyboardInterrupt.
    How often, and where training began, changes no result.
    """
    path = lesson.plan.folder / CHECKPOINT
    latest = saved = checkpoint
    try:
        while latest.stage < len(lesson.plan.stages):
            number = latest.stage
            for taught, loss in _steps(lesson, latest):
                latest = taught
                if _is_due(latest, number, lesson.plan.steps_per_checkpoint):
                    write_checkpoint(path, latest)
                    saved = latest
                tell(_report(lesson, number, latest, f"loss {loss:.3f}"))
    except KeyboardInterrupt:
        if latest is not saved:
            write_checkpoint(path, latest)
        raise
    return latest


def _is_due(checkpoint: Checkpoint, number: int, every: int) -> bool:
    """Whether so many steps of stage `number` are done, or all of them."""
    return checkpoint.stage != number or checkpoint.step % every == 0


def _report(lesson: Lesson, number: int, checkpoint: Checkpoint, figures: str) -> Report:
    """What to show after a step of stage `number`, now and then with a measurement."""
    stage = lesson.plan.stages[number]
    what = f"training {len(stage.weights)} deep"
    done = checkpoint.step if checkpoint.stage == number else stage.num_steps
    result = ""
    if _is_due(checkpoint, number, lesson.plan.steps_per_measurement):
        result = f"{what}, step {done}, {figures}: {summary(lesson, checkpoint)}"
        _log(lesson, result)
    return Report(what, done, stage.num_steps, figures, result)


def _steps(lesson: Lesson, checkpoint: Checkpoint) -> Iterator[tuple[Checkpoint, float]]:
    """The checkpoint after each step that is left of its stage, and the loss."""
    plan, number = lesson.plan, checkpoint.stage
    stage = plan.stages[number]
    data = batches(
        lesson.examples,
        num_windows=stage.num_windows,
        num_anchors=stage.num_anchors,
        depth=len(stage.weights),
        seed=plan.seed * 101 + number,
        first_step=checkpoint.step,
    )
    steps = train(
        lesson.gradients,
        checkpoint.parameters,
        checkpoint.optimiser,
        stage,
        data,
        range(checkpoint.step, stage.num_steps),
    )
    for step, loss, parameters, optimiser in steps:
        done = step + 1
        place = (number, done) if done < stage.num_steps else (number + 1, 0)
        yield Checkpoint(parameters, optimiser, checkpoint.shortlist, *place), loss


def summary(lesson: Lesson, checkpoint: Checkpoint) -> str:
    """Held-out figures in one line: acceptance at position 1 and tokens per round at k = 3."""
    head = dense_head(checkpoint.parameters, lesson.plan.num_blocks)
    figures = []
    for (kind, temperature), replies in lesson.held_out.items():
        m = measure_judged(lesson.target, head, lesson.shortlist, replies, temperature)
        figures.append(
            f"{kind} T={temperature:g} {m.per_position[0]:.3f} {m.tokens_per_round[2]:.2f}"
        )
    return ", ".join(figures)


def _log(lesson: Lesson, line: str) -> None:
    path = lesson.plan.folder / LOG
    with accessing("write", path), path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
