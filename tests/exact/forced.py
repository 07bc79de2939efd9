"""Real decodes that a law leads anywhere, so that every way through the loop is taken and watched.

In place of a law stands one that keeps and replaces tokens at random. What it is given, the
target's distributions and the draft, has to be right whatever was drafted, kept and cut before.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import cast
from unittest.mock import patch

import mlx.core as mx
import numpy as np

from mtplx import verification
from mtplx.draft_options import DraftOptions
from mtplx.models.drafter import HeadDrafter
from mtplx.models.llama import LlamaTarget
from mtplx.params import SamplingParams
from mtplx.rng import gate_uniforms
from mtplx.sampling import History, warp
from mtplx.speculation import Acceptance, Draft, Target, Uniforms
from mtplx.state import DecodeState
from tests.exact.coupled_text import SMALL, WHOLE_DRAFTS
from tests.exact.scene import Floats
from tests.hybrid import hybrid_drafter, hybrid_target
from tests.tiny import head_drafter, start, tiny_target

OPENING = (1, 5, 2, 2)
STOP_ID = 6


def leaning(token_ids: mx.array, logits: mx.array) -> mx.array:
    """A processor whose answer depends on every token before it, the last one most."""
    places = mx.arange(1, len(token_ids) + 1)
    turn = mx.sum(token_ids * places) % 7 + token_ids[-1]
    return logits + 0.2 * mx.sin(mx.arange(logits.shape[-1]) + turn)


EVERYTHING = SamplingParams(
    temperature=0.9,
    top_p=0.95,
    frequency_penalty=0.3,
    repetition_penalty=1.2,
    penalty_window=9,
    dry_multiplier=0.5,
    dry_allowed_length=1,
    xtc_probability=0.5,
    xtc_threshold=0.15,
    processors=(leaning,),
)


@dataclass(frozen=True, slots=True)
class Watched:
    """One round: the tokens before it, the draft, and what a law was given to decide on it."""

    text: tuple[int, ...]
    seed: int
    draft: Draft
    drafted: tuple[int, ...]
    p: Floats  # [K + 1, V]


@dataclass(slots=True)
class _ForcedLaw:
    generator: np.random.Generator
    seen: list[tuple[Draft, mx.array]] = field(default_factory=list)

    def __call__(self, p: mx.array, draft: Draft, uniforms: Uniforms) -> Acceptance:
        self.seen.append((draft, p))
        drafted = _listed(draft.token_ids)
        num_accepted = int(self.generator.integers(len(drafted) + 1))
        chosen = int(self.generator.integers(p.shape[-1]))
        ids = [*drafted[:num_accepted], chosen, *drafted[num_accepted:]][: len(drafted) + 1]
        count, zero = mx.array(num_accepted, dtype=mx.int32), mx.zeros((), dtype=mx.int32)
        return Acceptance(count, mx.array(ids, dtype=mx.int32), zero)


def forced_rounds(
    state: DecodeState,
    num_texts: int,
    params: SamplingParams,
    options: DraftOptions = WHOLE_DRAFTS,
) -> Iterator[Watched]:
    """The rounds of decodes of depth 1 to 4 on one state.

    Prompts begin alike, so that each decode begins with what is left of another in the caches, and
    repeat their beginning, so that there is something to look up. Texts end at a stop token or at
    a length.
    """
    generator = np.random.default_rng(11)
    for seed in range(num_texts):
        tail = generator.integers(8, size=int(generator.integers(4))).tolist()
        text, law = [*OPENING, *tail, *OPENING[1:]], _ForcedLaw(generator)
        chosen = replace(params, max_tokens=int(generator.integers(2, 10)))
        depth, laws = int(generator.integers(1, 5)), dict.fromkeys(verification.LAWS, law)
        with patch.dict(verification.LAWS, laws):
            emissions = start(
                state, text, chosen, depth=depth, seed=seed, stop_ids=[STOP_ID], draft=options
            )
            for i, emission in enumerate(emissions):
                draft, p = law.seen[i]
                rows = np.array(p).astype(np.float64)
                yield Watched(tuple(text), seed, draft, tuple(_listed(draft.token_ids)), rows)
                text += emission.token_ids


def plain_rows(
    target: Target, text: tuple[int, ...], params: SamplingParams, seed: int = 0
) -> Floats:
    """[T, V], what is to be drawn from after each prefix of the text, from one uncached pass."""
    hidden = target.forward(mx.array(text), target.make_cache())
    logits = target.logits(target.normalise(hidden))
    rows = []
    for i in range(len(text)):
        gates = gate_uniforms(seed, i + 1, 1) if params.xtc_probability else None
        history = History(text[: i + 1], gates=gates)
        rows.append(np.array(warp(logits[i : i + 1], params, history).probs))
    return np.concatenate(rows).astype(np.float64)


def states() -> dict[str, Callable[[], DecodeState]]:
    """What is decoded: a trunk of attention alone, and one with a recurrent layer."""

    def llama() -> DecodeState:
        target: LlamaTarget = tiny_target(1, replace(SMALL, num_layers=2))
        drafter: HeadDrafter = head_drafter(target)
        return DecodeState(target, drafter)

    def hybrid() -> DecodeState:
        target = hybrid_target()
        return DecodeState(target, hybrid_drafter(target))

    return {"attention": llama, "hybrid": hybrid}


def _listed(ids: mx.array) -> list[int]:
    return cast("list[int]", ids.tolist())
