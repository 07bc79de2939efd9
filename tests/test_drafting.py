"""Who drafts, and in which mode."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import numpy as np
import pytest

from mtplx.depth import FixedDepth, Plan
from mtplx.draft_options import DraftOptions
from mtplx.drafting import Drafting
from mtplx.models.drafter import HeadDrafter
from mtplx.models.head import LlamaHead
from mtplx.models.shortlist import make_shortlist
from mtplx.params import SamplingParams
from mtplx.sampling import History, warp
from mtplx.speculation import Draft, DrawDraft
from mtplx.state import DecodeState
from mtplx.stats import DecodeStats
from tests.drafts import (
    FILTERED,
    LONG,
    LOOPING,
    PROMPT,
    SAMPLED,
    TARGET,
    first_proposal,
    head_state,
    q_rows,
)
from tests.tiny import (
    GREEDY,
    assert_holds,
    finish,
    head_drafter,
    plain,
    start,
    tiny_head,
)


@pytest.mark.parametrize("mode", ["sampled", "filtered", "auto"])
@pytest.mark.parametrize("temperature", [None, 0.5])
def test_a_drawn_token_comes_with_the_q_of_its_mode(mode: str, temperature: float | None) -> None:
    """At the draft's temperature without filters, or at the request's within its filters."""
    draft, logits = q_rows(FILTERED, DraftOptions(mode, temperature, stop=0, lookup=False))
    drawn_by = (
        SamplingParams(temperature=temperature or 0.85 * 0.9) if mode == "sampled" else FILTERED
    )
    expected = mx.concatenate([warp(row, drawn_by, History([])).probs for row in logits])
    assert draft.probs is not None
    assert mx.array_equal(draft.probs, expected)
    assert mx.all(mx.take_along_axis(draft.probs, draft.token_ids[:, None], axis=-1) > 0).item()


@pytest.mark.parametrize(
    ("params", "mode"), [(SAMPLED, "greedy"), (GREEDY, "auto"), (GREEDY, "sampled")]
)
def test_a_greedy_draft_is_one_hot(params: SamplingParams, mode: str) -> None:
    """The head's most probable tokens without probabilities, in every mode at temperature 0."""
    draft, logits = q_rows(params, DraftOptions(mode, stop=0, lookup=False))
    assert draft.probs is None
    assert np.array(draft.token_ids).tolist() == [int(np.argmax(np.array(x))) for x in logits]


BY_TOKEN = [
    replace(FILTERED, repetition_penalty=1.6, frequency_penalty=0.4, penalty_window=5),
    replace(SAMPLED, logit_bias={3: 4.0, 9: -np.inf}, presence_penalty=0.5),
    replace(FILTERED, allowed_ids=tuple(range(0, 64, 3))),
    replace(SAMPLED, dry_multiplier=2.0),
    replace(GREEDY, repetition_penalty=3.0, allowed_ids=tuple(range(0, 64, 3))),
]


@pytest.mark.parametrize("params", BY_TOKEN)
def test_drafts_heed_what_is_said_about_tokens(params: SamplingParams) -> None:
    """Bias, allowed tokens and penalties change the head's logits as they do the target's, each
    position after its own history, the draft before it included."""
    mode = "filtered" if params.filters else "sampled"
    seen: list[mx.array] = []
    original = Drafting._as_requested

    def watched(self: Drafting, logits: mx.array, chain: Any) -> mx.array:
        seen.append(logits)
        return original(self, logits, chain)

    with patch.object(Drafting, "_as_requested", watched):
        options = DraftOptions(mode, params.temperature or None, stop=0, lookup=False)
        draft = first_proposal(params, options).draft
    for i, row in enumerate(seen):
        expected = warp(row, params, History(PROMPT, draft.token_ids[:i])).probs
        if draft.probs is None:
            assert mx.argmax(expected).item() == draft.token_ids[i].item()
        else:
            assert mx.array_equal(draft.probs[i : i + 1], expected)


def test_drafts_from_a_shortlist_heed_what_is_said_about_tokens() -> None:
    """Token ids mean tokens, whichever columns the head has."""
    ids = mx.array([40, 3, 60, 5, 9, 33, 20], dtype=mx.int32)
    drafter = HeadDrafter(LlamaHead(TARGET, tiny_head()), make_shortlist(TARGET.lm_head, ids))
    params = replace(SAMPLED, allowed_ids=(5, 20, 33, 50), logit_bias={20: -np.inf})
    state = DecodeState(TARGET, drafter)
    state.begin(PROMPT, drafting=True)
    options = DraftOptions("sampled", stop=0, lookup=False)
    draft = Drafting(state, params, options, 5, DecodeStats()).propose(list(PROMPT), 4).draft
    assert draft.probs is not None
    held = np.array(draft.probs) > 0
    assert np.array_equal(held, np.tile(np.isin(np.array(ids), [5, 33]), (4, 1)))


class Foreseeing(HeadDrafter):
    """Drafts from the target's own logits, changed: by an uncached pass over the whole text."""

    def __init__(self, change: Callable[[mx.array], mx.array], text: Sequence[int]) -> None:
        super().__init__(head_drafter(TARGET).head)
        self.change, self.text = change, list(text)

    def propose(self, rows: Any, num_tokens: int, draw: DrawDraft) -> Draft:
        drawn, probs = list[int](), []
        for step in range(num_tokens):
            tokens = mx.array([*self.text, *drawn])
            hidden = TARGET.normalise(TARGET.forward(tokens, TARGET.make_cache()))
            choice = draw(self.change(TARGET.logits(hidden)[-1:]), step)
            assert choice is not None
            drawn.append(int(np.array(choice[0])[0]))
            probs += [choice[1]] if choice[1] is not None else []
        return Draft(mx.array(drawn, dtype=mx.int32), mx.concatenate(probs) if probs else None)


def modes_of(change: Callable[[mx.array], mx.array], params: SamplingParams) -> DecodeStats:
    """Counts of a reply that was drafted from changed logits of the target itself."""
    drafter, stats = Foreseeing(change, PROMPT), DecodeStats()
    draft = DraftOptions(stop=0, lookup=False)
    for emission in start(
        DecodeState(TARGET, drafter), PROMPT, params, depth=2, stats=stats, draft=draft
    ):
        drafter.text += emission.token_ids
    return stats


def test_the_mode_follows_what_is_accepted() -> None:
    """A head that is right about the whole distribution is drawn from; one that only knows the
    most probable token drafts that, where the target is sure enough of it."""
    assert set(modes_of(lambda logits: logits, LONG).sources) == {"sampled"}
    stats = modes_of(lambda logits: logits * 0.01, replace(LONG, temperature=0.5))
    assert stats.draft_mode == "greedy"
    assert stats.sources["sampled"].drafted <= 20


def test_where_the_target_is_sure_the_first_drafts_are_greedy() -> None:
    """Below a temperature of 0.5 they are at first, and what they are later is learnt."""
    stats = modes_of(lambda logits: logits, replace(LONG, temperature=0.45))
    assert stats.draft_mode == "sampled"
    assert 0 < stats.sources["greedy"].drafted <= 16


def test_looking_at_the_modes_costs_no_read() -> None:
    """Estimates come with the one read of the round."""
    stats = DecodeStats()
    finish(start(head_state(), PROMPT, FILTERED, depth=2, stats=stats))
    assert stats.num_host_reads == stats.num_rounds > 0
    assert stats.drafted[0] > 0


@pytest.mark.parametrize("params", [GREEDY, replace(GREEDY, repetition_penalty=1.2), SAMPLED])
@pytest.mark.parametrize("mode", ["auto", "lookup"])
@pytest.mark.parametrize("headless", [False, True])
def test_a_passage_that_recurs_is_drafted(
    params: SamplingParams, mode: str, headless: bool
) -> None:
    """In place of the head or without any, and the state is that of the text after each round."""
    if headless and mode == "auto":
        return
    state, stats = DecodeState(TARGET) if headless else head_state(), DecodeStats()
    emitted: list[int] = []
    draft = DraftOptions(mode, stop=0)
    for emission in start(state, LOOPING, params, depth=3, stats=stats, draft=draft):
        emitted += emission.token_ids
        assert_holds(state, [*LOOPING, *emitted][:-1])
    assert stats.sources["lookup"].drafted > 0
    if not params.draws_randomly:
        assert emitted == plain(TARGET, LOOPING, params)


def test_a_head_and_a_passage_share_a_draft() -> None:
    """The head's tokens come with their q, those of the passage are one-hot, and both count."""
    state, stats = head_state(), DecodeStats()
    state.begin(LOOPING, drafting=True)
    drafting = Drafting(state, SAMPLED, DraftOptions(stop=0), 5, stats)
    with patch.object(FixedDepth, "plan", lambda self, ask: Plan(1, 2)):
        proposal = drafting.propose(list(LOOPING), 3)
    draft, period = proposal.draft, LOOPING[:6]
    assert (len(draft), proposal.num_head, draft.sampled) == (3, 1, (0,))
    assert draft.probs is not None
    assert draft.probs.shape[0] == 1
    assert np.array(draft.token_ids).tolist()[1:] == period[1:3]
    drafting.learn(proposal, [1, 2, 3], [])
    assert (stats.sources["sampled"].drafted, stats.sources["sampled"].accepted) == (1, 1)
    assert (stats.sources["lookup"].drafted, stats.sources["lookup"].accepted) == (2, 1)


def test_a_text_without_a_recurrence_is_decoded_plainly() -> None:
    """Looking up without a head costs no row that is not needed."""
    stats, long = DecodeStats(), replace(SAMPLED, temperature=5.0)
    text = finish(start(DecodeState(TARGET), [1, 2, 3, 4], long, depth=3, stats=stats))
    options = DraftOptions("lookup")
    stats = DecodeStats()
    rounds_ = start(DecodeState(TARGET), [1, 2, 3, 4], long, depth=3, stats=stats, draft=options)
    assert finish(rounds_) == text
    assert stats.sources == {}
    assert stats.num_rounds == long.max_tokens


def test_drafts_are_counted_by_who_made_them() -> None:
    """Drafted and accepted tokens per source add up to those per position."""
    stats = DecodeStats()
    finish(start(head_state(), LOOPING, LONG, depth=3, stats=stats, draft=DraftOptions(stop=0)))
    assert sum(count.drafted for count in stats.sources.values()) == sum(stats.drafted)
    accepted = list(chain(count.accepted for count in stats.sources.values()))
    assert sum(accepted) == sum(stats.accepted)
