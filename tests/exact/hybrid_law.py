"""The law of texts of a real model, recurrent state and all: enumerated, and counted in decodes.

The rows of every round of every text come out of one DecodeState that goes from text to text,
back to a shared prefix and on, as prompts of a conversation do.
"""

from dataclasses import replace
from functools import cache

import mlx.core as mx
import numpy as np

from mtplx.params import SamplingParams
from mtplx.sampling import History, warp
from mtplx.state import DecodeState
from tests.exact.forced import plain_rows
from tests.exact.scene import Floats, JointLaw, Prefix, Scene, normalised, plain_law
from tests.hybrid import HybridTarget, hybrid_drafter
from tests.tiny import finish, start

PROMPT = (1, 5, 2, 2)
PARAMS = SamplingParams(temperature=0.9, top_p=0.95, frequency_penalty=0.3, max_tokens=4)
NUM_TOKENS = 4


def plain_texts(target: HybridTarget, stop_id: int | None = None) -> JointLaw:
    """The law of the first four tokens, every text enumerated without a cache."""

    @cache
    def row(emitted: Prefix) -> Floats:
        return normalised(plain_rows(target, PROMPT + emitted, PARAMS)[-1:])

    return plain_law(_scene(lambda emitted, draft: row(emitted), stop_id))


def decoded_scene(target: HybridTarget, stop_id: int | None = None) -> Scene:
    """Rounds of a state with a head: p from verify passes, q from the head, depths 0 to 2."""
    state = DecodeState(target, hybrid_drafter(target))

    @cache
    def rows(emitted: Prefix, draft: Prefix) -> Floats:
        _propose(state, emitted, draft)
        block = mx.array([(PROMPT + emitted)[-1], *draft])
        history = History(PROMPT + emitted, mx.array(draft, dtype=mx.int32))
        probs = np.array(warp(state.forward(block).logits, PARAMS, history).probs)
        state.keep([])
        return normalised(probs.astype(np.float64))

    @cache
    def proposal(emitted: Prefix, draft: Prefix) -> Floats:
        logits = _propose(state, emitted, (*draft, 0))
        q = warp(logits[-1:], SamplingParams(temperature=1.1), History(())).probs
        return normalised(np.array(q[0]).astype(np.float64))

    scene = _scene(rows, stop_id)
    return replace(scene, proposal=proposal, depth=lambda emitted: (2, 1, 0, 0)[len(emitted)])


def _propose(state: DecodeState, emitted: Prefix, draft: Prefix) -> mx.array:
    """Bring the state to these tokens, and give the head's logits [K, V] over this draft."""
    prompt = PROMPT + emitted
    state.begin(prompt, drafting=True)
    logits = []

    def follow(row: mx.array, step: int) -> tuple[mx.array, None]:
        logits.append(row)
        return mx.array([draft[step]], dtype=mx.int32), None

    inputs = state.draft_input(prompt[-1])
    if draft and inputs is not None:
        assert state.drafter is not None
        state.drafter.propose(inputs, len(draft), follow)
        state.drafter.keep()
    return mx.concatenate(logits) if logits else mx.zeros((0, state.target.vocab_size))


def _scene(rows: object, stop_id: int | None) -> Scene:
    def nothing(emitted: Prefix, draft: Prefix) -> Floats:
        raise AssertionError("nothing is drafted here")

    return Scene(
        rows,  # type: ignore[arg-type]
        nothing,
        lambda emitted: 0,
        stop_id=stop_id,
        max_tokens=NUM_TOKENS,
        law="block",
    )


def decoded_counts(target: HybridTarget, num_texts: int, stop_id: int) -> dict[Prefix, int]:
    """How often real decodes, of depths 0 to 3 in turn on one state, gave each text."""
    state = DecodeState(target, hybrid_drafter(target))
    counts: dict[Prefix, int] = {}
    for seed in range(num_texts):
        rounds = start(state, PROMPT, PARAMS, depth=seed % 4, seed=seed, stop_ids=[stop_id])
        text = tuple(finish(rounds))
        counts[text] = counts.get(text, 0) + 1
    return counts
