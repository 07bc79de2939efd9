"""Under the coupled law a seed decides the text: real decodes with every drafter at every depth."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import mlx.core as mx

from mtplx.draft_options import DraftOptions
from mtplx.models.head import HeadWeights
from mtplx.models.llama import LlamaTarget
from mtplx.models.matrix import DenseMatrix
from mtplx.params import SamplingParams
from mtplx.speculation import Drafter, Target
from mtplx.state import DecodeState
from mtplx.stats import DecodeStats
from tests.hybrid import hybrid_drafter, hybrid_target
from tests.tiny import (
    DIMS,
    finish,
    head_drafter,
    plain,
    scaled_block,
    scaled_head,
    start,
    tiny_head,
    tiny_target,
)

SMALL = replace(
    DIMS, hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=1, mlp_size=16, vocab_size=32
)
COUPLED = SamplingParams(temperature=0.8, max_tokens=9, law="coupled")
WHOLE_DRAFTS = DraftOptions(lookup=False, stop=0.0)
PROMPT = [3, 1, 7, 5, 3, 1, 7]


@dataclass(frozen=True, slots=True)
class Writer:
    """A target and a way to draft for it."""

    target: Target
    drafter: Callable[[], Drafter | None]
    options: DraftOptions = WHOLE_DRAFTS

    def state(self) -> DecodeState:
        return DecodeState(self.target, self.drafter())


def gentle_target(factor: float = 0.2) -> LlamaTarget:
    """A trunk whose next token depends above all on the last one, so that it can be foreseen.

    factor: of what else it depends on; with 0 there is nothing else.
    """
    target = tiny_target(2, SMALL)
    return replace(target, blocks=tuple(scaled_block(block, factor) for block in target.blocks))


def knowing_head(target: LlamaTarget, factor: float = 0.2) -> HeadWeights:
    """A head that is nearly always near the gentle trunk, as a trained one would be."""
    width = target.dims.hidden_size
    weight = mx.concatenate([mx.eye(width), mx.zeros((width, width))], axis=1)
    return replace(
        scaled_head(tiny_head(2, target.dims), factor),
        enorm=mx.ones(width),
        hnorm=mx.ones(width),
        eh_proj=DenseMatrix(weight),
        norm=target.final_norm,
    )


def writers() -> dict[str, Writer]:
    """Who drafts: heads that know much, little and nothing, and none at all."""
    target, hybrid = gentle_target(), hybrid_target()
    constant = scaled_head(tiny_head(2, SMALL), 0.0)
    return {
        "knowing head": Writer(target, lambda: head_drafter(target, knowing_head(target))),
        "random head": Writer(target, lambda: head_drafter(target)),
        "constant head": Writer(
            target,
            lambda: head_drafter(target, constant),
            DraftOptions("greedy", lookup=False, stop=0.0),
        ),
        "lookup": Writer(target, lambda: None, DraftOptions("lookup", stop=0.0)),
        "head and lookup": Writer(
            target, lambda: head_drafter(target, knowing_head(target)), DraftOptions(stop=0.0)
        ),
        "head that stops early": Writer(
            target,
            lambda: head_drafter(target, knowing_head(target)),
            DraftOptions(lookup=False, stop=0.3),
        ),
        "random head on a hybrid": Writer(hybrid, lambda: hybrid_drafter(hybrid)),
    }


def changed_texts(
    writer: Writer, runs: Iterable[tuple[int, Iterable[int]]], params: SamplingParams = COUPLED
) -> tuple[list[tuple[int, int]], int]:
    """The (seed, depth) whose text is not that of plain decoding, and how many were compared.

    runs: seeds, and the depths of each. One state serves them all, so that each begins with what
    the one before it left behind.
    """
    state, found, number, stats = writer.state(), [], 0, DecodeStats()
    prompt = [token_id % writer.target.vocab_size for token_id in PROMPT]
    for seed, depths in runs:
        expected = plain(writer.target, prompt, params, seed=seed)
        for depth in depths:
            rounds = start(
                state, prompt, params, depth=depth, seed=seed, stats=stats, draft=writer.options
            )
            number += 1
            if finish(rounds) != expected:
                found.append((seed, depth))
    assert sum(stats.drafted) > 0, "nothing was drafted"
    return found, number


def all_depths(num_seeds: int) -> list[tuple[int, Iterable[int]]]:
    """Every depth from 1 to 7 for each seed."""
    return [(seed, range(1, 8)) for seed in range(num_seeds)]


def one_depth(num_seeds: int) -> list[tuple[int, Iterable[int]]]:
    """One of the depths from 1 to 7 for each seed, in turn."""
    return [(seed, [1 + seed % 7]) for seed in range(num_seeds)]


def two_depths(num_seeds: int) -> list[tuple[int, Iterable[int]]]:
    """Two of the depths from 1 to 7 for each seed, in turn."""
    return [(seed, {1 + seed % 7, 1 + (seed + 3) % 7}) for seed in range(num_seeds)]
