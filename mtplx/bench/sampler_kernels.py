"""How fast kernels choose tokens, by step and number of rows, beside MLX's operations.

A step is bounded by reading and writing rows of the vocabulary. It is told in the bytes that it
takes and gives, each once: what nobody can do without, however often the row is looked at.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import mlx.core as mx

from mtplx.bench.kernels import (
    MLX,
    NUM_BYTES,
    OURS,
    Arm,
    KernelRow,
    Seconds,
    measure_arms,
    seconds,
)
from mtplx.kernels import sampler
from mtplx.kernels.source import Maker, metal
from mtplx.sampling import draw_by_operations
from mtplx.verification import residual
from mtplx.warps.ranking import best_columns

VOCABULARY = 151_936  # of Qwen's models
NUM_ROWS = (1, 4)  # a token of plain decoding, and a draft of three
NUM_BEST = 40
TEMPERATURE = 0.8

Step = Callable[..., list[mx.array]]


@dataclass(frozen=True, slots=True)
class Case:
    """A step with so many rows.

    inputs: of every time that it is done in a turn. num_bytes: what one time takes and gives.
    ours: takes one of `inputs` and a maker. theirs: by MLX's operations.
    """

    num_rows: int
    num_bytes: int
    inputs: Sequence[tuple[mx.array, ...]]
    ours: Step
    theirs: Step


def measure_step(
    name: str,
    cases: Sequence[Case],
    ceiling: float,
    took: Seconds = seconds,
    maker: Maker = metal,
) -> list[KernelRow]:
    """Our kernels and MLX's operations, with each number of rows. ceiling: bytes per second."""
    return measure_arms(name, make_arms(cases, maker), ceiling, took)


def make_arms(cases: Sequence[Case], maker: Maker) -> list[Arm]:
    """Both ways of each case; a turn does the step with every one of its inputs."""
    arms: list[Arm] = []
    for case in cases:
        for kernel, step in ((OURS, partial(case.ours, maker=maker)), (MLX, case.theirs)):
            num_bytes = case.num_bytes * len(case.inputs)
            arms.append(Arm(kernel, case.num_rows, num_bytes, partial(_all, step, case.inputs)))
    return arms


def _all(step: Step, inputs: Sequence[tuple[mx.array, ...]]) -> list[mx.array]:
    return [array for taken in inputs for array in step(*taken)]


def steps(
    width: int = VOCABULARY, num_bytes: int = NUM_BYTES
) -> Iterator[tuple[str, Sequence[Case]]]:
    """Every step over a vocabulary of this size, about so many bytes in a turn: more than caches
    hold."""
    for name, make in STEPS.items():
        yield name, [make(num_rows, width, num_bytes) for num_rows in NUM_ROWS]


def _softmax(num_rows: int, width: int, num_bytes: int) -> Case:
    def ours(scores: mx.array, *, maker: Maker) -> list[mx.array]:
        return [sampler.softmax(scores, math.log2(math.e) / TEMPERATURE, maker=maker)[0]]

    def theirs(scores: mx.array) -> list[mx.array]:
        return [mx.softmax(scores.astype(mx.float32) / TEMPERATURE, axis=-1)]

    once = (2 + 4) * num_rows * width
    inputs = [(_scores(i, num_rows, width),) for i in range(_times(num_bytes, once))]
    return Case(num_rows, once, inputs, ours, theirs)


def _best(num_rows: int, width: int, num_bytes: int) -> Case:
    def ours(scores: mx.array, *, maker: Maker) -> list[mx.array]:
        return list(sampler.best(scores, NUM_BEST, maker=maker))

    def theirs(scores: mx.array) -> list[mx.array]:
        columns = best_columns(scores, NUM_BEST)
        return [mx.take_along_axis(scores, columns, axis=-1), columns]

    once = num_rows * (2 * width + 8 * NUM_BEST)
    inputs = [(_scores(i, num_rows, width),) for i in range(_times(num_bytes, once))]
    return Case(num_rows, once, inputs, ours, theirs)


def _residual(num_rows: int, width: int, num_bytes: int) -> Case:
    """What is left of p after q, and a token of each row."""
    rows = mx.arange(num_rows, dtype=mx.int32)
    uniforms = mx.random.uniform(shape=(num_rows + 1, 2), key=mx.random.key(num_rows))
    mx.eval(rows, uniforms)

    def ours(p: mx.array, q: mx.array, *, maker: Maker) -> list[mx.array]:
        left = sampler.Left(p, rows, q, maker=maker)
        return [left.draw(left.sums(), rows, uniforms)[0]]

    def theirs(p: mx.array, q: mx.array) -> list[mx.array]:
        return [draw_by_operations(residual(p[:-1], None, q), uniforms[:-1])]

    once = num_rows * (8 * width + 4)
    inputs = [  # of p one row more, which has no draft and is not looked at
        (_probs(2 * i, num_rows + 1, width), _probs(2 * i + 1, num_rows, width))
        for i in range(_times(num_bytes, once))
    ]
    return Case(num_rows, once, inputs, ours, theirs)


def _times(num_bytes: int, once: int) -> int:
    return max(1, num_bytes // once)


def _scores(seed: int, num_rows: int, width: int) -> mx.array:
    """As a model gives them, in float16."""
    scores = mx.random.normal((num_rows, width), scale=3, key=mx.random.key(seed))
    scores = scores.astype(mx.float16)
    mx.eval(scores)
    return scores


def _probs(seed: int, num_rows: int, width: int) -> mx.array:
    probs = mx.softmax(_scores(seed, num_rows, width).astype(mx.float32), axis=-1)
    mx.eval(probs)
    return probs


STEPS: Mapping[str, Callable[[int, int, int], Case]] = {
    "softmax": _softmax,
    f"best {NUM_BEST}": _best,
    "residual and draw": _residual,
}
