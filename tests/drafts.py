"""Drafts of a tiny model, and the requests that ask for them."""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import mlx.core as mx

from mtplx.draft_options import DraftOptions
from mtplx.drafting import Drafting, Proposal
from mtplx.params import SamplingParams
from mtplx.speculation import Draft
from mtplx.state import DecodeState
from mtplx.stats import DecodeStats
from tests.tiny import (
    head_drafter,
    random_prompt,
    tiny_target,
)

TARGET = tiny_target()
PROMPT = random_prompt(7)
SAMPLED = SamplingParams(temperature=0.9, max_tokens=14)
FILTERED = replace(SAMPLED, top_k=12, top_p=0.9)
LONG = replace(SAMPLED, max_tokens=60)
LOOPING = [*random_prompt(6, 1)] * 4
"""a prompt whose end recurs in it"""


def head_state() -> DecodeState:
    return DecodeState(TARGET, head_drafter(TARGET))


def first_proposal(params: SamplingParams, draft: DraftOptions) -> Proposal:
    state = head_state()
    state.begin(PROMPT, drafting=True)
    drafting = Drafting(state, params, draft, seed=5, stats=DecodeStats())
    return drafting.propose(list(PROMPT), 3)


def q_rows(params: SamplingParams, draft: DraftOptions) -> tuple[Draft, list[mx.array]]:
    """A first draft of three tokens and the head's logits at each of them."""
    seen: list[mx.array] = []
    original = Drafting._choose

    def watched(self: Drafting, chain: Any, logits: mx.array, step: int) -> Any:
        seen.append(logits)
        return original(self, chain, logits, step)

    with patch.object(Drafting, "_choose", watched):
        return first_proposal(params, draft).draft, seen
