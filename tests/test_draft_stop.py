"""Drafts that end before a token that is not likely enough."""

from dataclasses import replace
from unittest.mock import patch

import mlx.core as mx
import numpy as np
import pytest

from mtplx.depth import Ask, FixedDepth, Plan
from mtplx.draft_options import DraftOptions
from mtplx.drafting import Drafting
from mtplx.params import SamplingParams
from mtplx.sampling import History, warp
from mtplx.stats import DecodeStats
from tests.drafts import (
    FILTERED,
    PROMPT,
    SAMPLED,
    TARGET,
    head_state,
    q_rows,
)
from tests.tiny import (
    GREEDY,
    assert_holds,
    finish,
    plain,
    start,
)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED, FILTERED, replace(SAMPLED, law="coupled")])
def test_a_draft_that_is_never_likely_enough_is_plain_decoding(params: SamplingParams) -> None:
    """At the strictest stop nothing is drafted, and the text is plain decoding's for each seed."""
    for seed in range(3):
        stats, state = DecodeStats(), head_state()
        draft = DraftOptions(stop=1.0, lookup=False)
        rounds_ = start(state, PROMPT, params, depth=3, seed=seed, stats=stats, draft=draft)
        text = finish(rounds_)
        assert text == plain(TARGET, PROMPT, params, seed=seed)
        assert stats.sources == {}
        assert_holds(state, [*PROMPT, *text[:-1]])


@pytest.mark.parametrize("params", [GREEDY, SAMPLED, FILTERED])
def test_a_draft_ends_where_its_tokens_become_unlikely(params: SamplingParams) -> None:
    """At the first position where the product of the largest probabilities is below the stop,
    decided before that position's token is drawn."""
    for stop in (0.3, 0.03, 0.003):
        draft, logits = q_rows(params, DraftOptions(stop=stop, lookup=False))
        manner = SamplingParams(temperature=1.0)
        if params.draws_randomly:
            manner = params if params.filters else SamplingParams(temperature=0.85 * 0.9)
        reached = 1.0
        for i, row in enumerate(logits):
            reached *= float(np.array(warp(row, manner, History([])).probs).max())
            assert (i < len(draft)) == (reached >= stop)
        whole, _ = q_rows(params, DraftOptions(stop=0, lookup=False))
        kept = np.array(whole.token_ids)[: len(draft)]
        assert np.array_equal(np.array(draft.token_ids), kept)


def test_drafts_stop_by_themselves_where_that_costs_no_wait() -> None:
    """On a CPU a tenth is asked for, on a GPU nothing; what is stated goes before."""
    for device, expected in ((mx.cpu, 0.1), (mx.gpu, 0.0)):
        with patch.object(mx, "default_device", lambda device=device: device):
            for stop in (None, 0.0, 0.4):
                options = DraftOptions(stop=stop)
                drafting = Drafting(head_state(), SAMPLED, options, 5, DecodeStats())
                asked = expected if stop is None else stop
                assert drafting._least(Plan(2)) == ((asked, asked) if asked else ())


def test_a_policy_has_thresholds_of_its_own_unless_one_is_asked_for() -> None:
    """It knows what a row more is worth; a request that says otherwise is obeyed."""
    plan = Plan(2, least=(0.2, 0.6), asks=(0.0, 0.5))
    for stop, expected in ((None, (0.2, 0.6)), (0.4, (0.4, 0.4)), (0.0, ())):
        drafting = Drafting(head_state(), SAMPLED, DraftOptions(stop=stop), 5, DecodeStats())
        assert drafting._least(plan) == expected


class Thresholds(FixedDepth):
    """Plans the head's tokens with these thresholds."""

    def __init__(self, least: float, asks: float) -> None:
        super().__init__(4)
        self.least, self.asks = least, asks

    def plan(self, ask: Ask) -> Plan:
        num = min(4, ask.most)
        return Plan(num, least=(self.least,) * num, asks=(0.0, *[self.asks] * (num - 1)))


@pytest.mark.parametrize(("asks", "reads"), [(1.1, 1), (0.0, 4)])
def test_a_head_is_not_run_for_a_token_that_is_hardly_reached(asks: float, reads: int) -> None:
    """The draft ends before its logits are read, and the text is that of plain decoding."""
    stats, params = DecodeStats(), replace(GREEDY, max_tokens=6)
    options = DraftOptions(lookup=False)
    policy = Thresholds(least=0.0, asks=asks)
    rounds_ = start(head_state(), PROMPT, params, depth=policy, stats=stats, draft=options)
    text = list(next(rounds_).token_ids)
    assert stats.num_host_reads == 1 + reads
    assert [*text, *finish(rounds_)] == plain(TARGET, PROMPT, params)


def test_reads_of_a_stop_are_counted() -> None:
    """One for each token that was thought of, beside that of the round."""
    stats, draft = DecodeStats(), DraftOptions(stop=1e-9, lookup=False)
    finish(start(head_state(), PROMPT, GREEDY, depth=2, stats=stats, draft=draft))
    assert stats.num_host_reads == stats.num_rounds + sum(stats.drafted)
