"""What real decodes give a law to decide on, on every way through the loop."""

from unittest.mock import patch

import mlx.core as mx
import numpy as np
import pytest

from mtplx import drafting
from mtplx.draft_gain import Gains
from mtplx.draft_options import DraftOptions
from mtplx.lookup import Continuation
from mtplx.params import SamplingParams
from mtplx.rng import draft_uniforms
from mtplx.sampling import draw
from tests.exact.forced import EVERYTHING, forced_rounds, plain_rows, states

Plan = tuple[int, int]
BOUND = 2e-5  # other BLAS libraries than MLX's own round a block otherwise than single rows


@pytest.mark.parametrize("params", [SamplingParams(temperature=0.9), EVERYTHING], ids=["t", "all"])
@pytest.mark.parametrize("name", ["attention", "hybrid"])
def test_a_law_is_given_what_plain_decoding_draws_from(name: str, params: SamplingParams) -> None:
    """Row by row, all warps included, after any accepted prefix, cut, and reuse of the caches."""
    state, num_rows = states()[name](), 0
    for watched in forced_rounds(state, 16, params):
        text = (*watched.text, *watched.drafted)
        due = plain_rows(state.target, text, params, watched.seed)[-len(watched.p) :]
        assert np.abs(watched.p - due).max() < BOUND
        num_rows += len(due)
    assert num_rows > 60


@pytest.mark.parametrize("mode", ["sampled", "filtered"])
@pytest.mark.parametrize("temperature", [0.3, 0.6, 1.0, 1.5])
def test_a_draft_hands_over_the_q_that_its_tokens_were_drawn_from(
    temperature: float, mode: str
) -> None:
    """Each drafted token is what its q gives for the numbers of its place, bit for bit."""
    state, drawn_from = states()["attention"](), list[mx.array]()
    params = SamplingParams(temperature=temperature, top_k=12)

    def recording(probs: mx.array, uniforms: mx.array) -> mx.array:
        drawn_from.append(probs)
        return draw(probs, uniforms)

    tokens = set()
    with patch.object(drafting, "draw", recording):
        for watched in forced_rounds(state, 4, params, DraftOptions(mode, lookup=False, stop=0.0)):
            q = watched.draft.probs
            assert len(drawn_from) == len(watched.drafted)
            for step, token_id in enumerate(watched.drafted):
                assert q is not None
                assert mx.array_equal(drawn_from[step][0], q[step])
                numbers = draft_uniforms(watched.seed, len(watched.text), step)
                assert draw(q[step], numbers).item() == token_id
                assert (np.count_nonzero(q[step]) <= 12) == (mode == "filtered")
                tokens.add(token_id)
            drawn_from.clear()
    assert len(tokens) > 3


def test_a_greedy_draft_is_one_hot() -> None:
    """The most probable token of the head is handed over without probabilities."""
    for options in (DraftOptions("greedy", lookup=False, stop=0.0), DraftOptions("lookup")):
        rounds = forced_rounds(states()["attention"](), 6, SamplingParams(), options)
        drafts = [watched.draft for watched in rounds if watched.drafted]
        assert all(draft.probs is None for draft in drafts)
        assert drafts


def test_a_passage_behind_a_draft_is_one_hot() -> None:
    """Where an earlier passage continues the head's draft, its tokens alone have no q."""

    def one_and_the_rest(self: Gains, count: int, found: Continuation, *, head: bool) -> Plan:
        return (1, count - 1) if found.token_ids else (count, 0)

    params, options = SamplingParams(temperature=0.9), DraftOptions("sampled", stop=0.0)
    num_mixed = 0
    with patch.object(Gains, "plan", one_and_the_rest):
        for watched in forced_rounds(states()["hybrid"](), 6, params, options):
            if watched.draft.sampled is not None:
                assert watched.draft.sampled == (0,)
                assert watched.draft.probs is not None
                assert len(watched.draft.probs) == 1
                num_mixed += len(watched.drafted) > 1
    assert num_mixed > 0


def test_temperature_0_drafts_and_takes_the_most_probable() -> None:
    """Nothing is drawn: every distribution a law is given is certain, and no draft has a q."""
    for watched in forced_rounds(states()["attention"](), 4, SamplingParams(temperature=0)):
        assert np.all(np.isin(watched.p, [0, 1]))
        assert watched.draft.probs is None
