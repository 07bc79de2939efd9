"""Passages of a tiny trunk, and a whole training run that takes seconds.

Run as `python -m tests.training.small FOLDER MODEL BLAS CHANGES` it is such a run, which prints a
line for everything it tells and, at its end, "finished".
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mtplx.models.llama import LlamaTarget
    from mtplx.training.own_text import Passage
    from mtplx.training.plan import Plan


def random_passages(
    target: "LlamaTarget", lengths: Sequence[int], seed: int = 0
) -> "list[Passage]":
    """Passages of random tokens with the trunk's hidden states."""
    from mtplx.training.own_text import read_texts
    from tests.tiny import random_prompt

    vocab_size = target.vocab_size
    tokens = [random_prompt(n, 100 * seed + i, vocab_size) for i, n in enumerate(lengths)]
    return [read_texts(target, [token_ids], "text")[0] for token_ids in tokens]


def foreseeable_target(spread: float = 0.0) -> "LlamaTarget":
    """A trunk of one layer, which is what a head can be: it lacks only the first token's row.

    Its embeddings are of RMS 1, which is what a head makes of them, times exp(spread * normal).
    """
    import mlx.core as mx
    import numpy as np

    from mtplx.models.matrix import DenseMatrix
    from tests.tiny import DIMS, tiny_target

    target = tiny_target(dims=replace(DIMS, num_layers=1))
    (weight,) = target.embedding.arrays()
    sizes = np.exp(np.random.default_rng(1).normal(size=(DIMS.vocab_size, 1)) * spread)
    unit = weight / mx.sqrt(mx.mean(weight.square(), axis=-1, keepdims=True))
    return replace(target, embedding=DenseMatrix(unit * mx.array(sizes.astype(np.float32))))


def small_plan(folder: Path, model: Path, **changes: Any) -> "Plan":
    """All parts of a training run, each as short as it can be."""
    from mtplx.training.plan import Plan

    text = folder.parent / "text.txt"
    if not text.exists():
        text.write_text("".join(f"The square of {n} is {n * n}.\n" for n in range(60)))
    sizes = {
        "own_tokens": 3 * 8 * 48,
        "texts": (text,),
        "text_tokens": 600,
        "shortlist_size": 64,
        "one_step": 14,
        "unrolled": 8,
        "num_workers": 2,
        "passage_length": 48,
        "rows_per_chunk": 8,
        "num_windows": 4,
        "num_anchors": 24,
        "prompts_per_class": 2,
        "reply_tokens": 12,
        "steps_per_checkpoint": 5,
        "steps_per_measurement": 10,
    }
    return Plan(**{"model": str(model), "folder": folder, **sizes, **changes})


def main() -> None:
    from mtplx import blas

    folder, model, choice, changes = sys.argv[1:]
    blas.preload(choice)

    from mtplx.cli.output import complain
    from mtplx.errors import MtplxError
    from mtplx.loading.load import load
    from mtplx.training.lesson import Report
    from mtplx.training.pipeline import run

    def tell(report: Report) -> None:
        print(f"{report.what} {report.done}/{report.total}", flush=True)

    try:
        run(small_plan(Path(folder), Path(model), **json.loads(changes)), load(model), tell)
    except MtplxError as error:
        complain(str(error))
        sys.exit(error.exit_code)
    print("finished")


if __name__ == "__main__":
    main()
