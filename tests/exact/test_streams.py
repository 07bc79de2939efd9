"""Random numbers as real decodes use them: each once, none without need, no request another's."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import mlx.core as mx
import numpy as np
import pytest

from mtplx import drafting, rng
from mtplx.draft_options import DraftOptions
from mtplx.params import SamplingParams
from mtplx.rng import Purpose
from mtplx.state import DecodeState
from tests.exact.coupled_text import PROMPT, WHOLE_DRAFTS, writers
from tests.exact.forced import states
from tests.tiny import ChosenDepth, finish, plain, start

SAMPLED = SamplingParams(temperature=0.9, max_tokens=16)
Key = tuple[int, int, Purpose, int]


@contextmanager
def asked() -> Iterator[list[Key]]:
    """Every key of a random number that is asked for."""
    keys: list[Key] = []
    original = rng.words

    def recording(
        seed: int, position: int, purpose: Purpose, count: int, *, step: int = 0
    ) -> list[int]:
        keys.append((seed, position, purpose, step))
        return original(seed, position, purpose, count, step=step)

    with patch.object(rng, "words", recording):
        yield keys


def test_a_decode_drafts_and_accepts_with_numbers_of_their_own() -> None:
    """Over rounds of many depths no DRAFT or ACCEPT number is asked for twice, and they differ."""
    state = writers()["knowing head"].state()
    with asked() as keys:
        for seed in range(6):
            finish(start(state, PROMPT, SAMPLED, depth=1 + seed, seed=seed, draft=WHOLE_DRAFTS))
    counts = Counter(key for key in keys if key[2] in (Purpose.DRAFT, Purpose.ACCEPT))
    assert len(counts) > 100
    assert max(counts.values()) == 1


@pytest.mark.parametrize("law", ["block", "rejection", "coupled"])
def test_a_round_without_a_draft_asks_for_its_token_alone(law: str) -> None:
    """Plain decoding uses one TARGET number pair (or one noise key) per position, and no other."""
    state = writers()["knowing head"].state()
    with asked() as keys:
        finish(start(state, PROMPT, replace(SAMPLED, law=law), depth=0, seed=3))
    places = Counter((key[1], key[2]) for key in keys)
    assert {purpose for _, purpose in places} <= {Purpose.TARGET, Purpose.NOISE}
    assert {place for place, _ in places} == set(range(len(PROMPT), len(PROMPT) + 16))
    assert max(places.values()) == 1


def test_a_depth_that_drafts_nothing_is_plain_decoding() -> None:
    """A policy that answers 0 leaves the text of a seed as it is without a drafter."""
    writer = writers()["knowing head"]
    for seed in range(5):
        expected = plain(writer.target, PROMPT, SAMPLED, seed=seed)
        never = ChosenDepth(lambda context: 0)
        found = finish(start(writer.state(), PROMPT, SAMPLED, depth=never, seed=seed))
        assert found == expected


@pytest.mark.parametrize("depths", [(0, 0), (3, 3), (0, 4)])
def test_decodes_side_by_side_write_what_they_write_alone(depths: tuple[int, int]) -> None:
    """Two requests whose rounds alternate in one process do not disturb each other."""
    make = states()["hybrid"]

    def decode(i: int) -> Iterator[list[int]]:
        rounds = start(make(), [1, 2, 3 + i], SAMPLED, depth=depths[i], seed=i, draft=WHOLE_DRAFTS)
        return (emission.token_ids for emission in rounds)

    alone = [[x for ids in decode(i) for x in ids] for i in range(2)]
    together: list[list[int]] = [[], []]
    running = {i: decode(i) for i in range(2)}
    while running:
        for i in list(running):
            ids = next(running[i], None)
            if ids is None:
                del running[i]
            else:
                together[i] += ids
    assert together == alone
    assert alone[0] != alone[1]


@pytest.mark.parametrize("mode", ["greedy", "sampled", "filtered"])
def test_whether_a_draft_goes_on_is_settled_before_the_draw(mode: str) -> None:
    """The early stop looks at q: no number that draws a token can change whether it is drawn."""
    writer = writers()["knowing head"]
    options = DraftOptions(mode, lookup=False, stop=0.4)
    lengths: dict[int, set[bool]] = {}
    for seed in range(8):
        for u in (0.0, 0.3, 0.6, 0.9, 1 - 2.0**-24):
            with patch.object(drafting, "draft_uniforms", lambda *_, u=u: mx.array([u, u])):
                state = DecodeState(writer.target, writer.drafter())
                prompt = [*PROMPT, seed]
                lengths.setdefault(seed, set()).add(_drafts_anything(state, prompt, options))
    assert all(len(answers) == 1 for answers in lengths.values())
    assert len({next(iter(answers)) for answers in lengths.values()}) == 2


def _drafts_anything(state: DecodeState, prompt: list[int], options: DraftOptions) -> bool:
    from mtplx.stats import DecodeStats

    stats = DecodeStats()
    state.begin(prompt, drafting=True)
    drafts = drafting.Drafting(state, SAMPLED, options, 0, stats)
    return len(drafts.propose(prompt, 1).draft) > 0


def test_two_seeds_share_nothing() -> None:
    """What different seeds draw at the same places is uncorrelated, in every purpose."""
    for purpose in Purpose:
        one, other = (
            np.array([rng.uniforms(seed, place, purpose, 1)[0] for place in range(4_000)])
            for seed in (1, 2)
        )
        assert abs(np.corrcoef(one, other)[0, 1]) < 6 / 4_000**0.5
