"""Which random numbers and which law a decode uses, alone and beside others."""

import threading
from dataclasses import replace
from itertools import zip_longest
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import pytest

from mtplx import rng, rounds, verification
from mtplx.draft_options import DraftOptions
from mtplx.params import SamplingParams
from mtplx.rng import Purpose
from mtplx.speculation import Acceptance
from tests.drafts import (
    FILTERED,
    LONG,
    LOOPING,
    PROMPT,
    SAMPLED,
    head_state,
)
from tests.tiny import (
    GREEDY,
    finish,
    start,
)


def used_numbers(params: SamplingParams, depth: int, draft: DraftOptions) -> list[Any]:
    """(position, purpose, step) of every number asked for in a decode."""
    asked: list[Any] = []
    original = rng.words

    def recording(seed: int, position: int, purpose: Purpose, count: int, *, step: int = 0) -> Any:
        asked.append((position, purpose, step))
        return original(seed, position, purpose, count, step=step)

    with patch.object(rng, "words", recording):
        finish(start(head_state(), PROMPT, params, depth=depth, draft=draft))
    return asked


def test_rounds_without_a_draft_use_no_numbers_for_drafts() -> None:
    """Neither those that propose nor those that accept, also where a stop ended the draft."""
    for depth, draft in ((0, DraftOptions()), (3, DraftOptions(stop=1.0, lookup=False))):
        purposes = {purpose for _, purpose, _ in used_numbers(SAMPLED, depth, draft)}
        assert purposes == {Purpose.TARGET, Purpose.NOISE}


@pytest.mark.parametrize("mode", ["greedy", "lookup"])
def test_one_hot_drafts_use_no_numbers_to_propose(mode: str) -> None:
    """A token that is not drawn takes no number from those that are."""
    asked = used_numbers(SAMPLED, 3, DraftOptions(mode, stop=0))
    assert Purpose.DRAFT not in {purpose for _, purpose, _ in asked}


def test_no_number_decides_twice() -> None:
    """Accept and draft numbers are asked for once each, whatever was refused."""
    for mode in ("auto", "sampled", "filtered"):
        asked = used_numbers(replace(FILTERED, max_tokens=40), 3, DraftOptions(mode, stop=0))
        for purpose in (Purpose.ACCEPT, Purpose.DRAFT):
            keys = [key for key in asked if key[1] is purpose]
            assert len(keys) == len(set(keys)) > 10


@pytest.mark.parametrize("params", [FILTERED, replace(SAMPLED, law="coupled"), LONG])
def test_decodes_that_take_turns_are_as_if_alone(params: SamplingParams) -> None:
    """Random ones too: nothing is shared, neither numbers nor what was learnt about drafts."""

    def begin(seed: int) -> Any:
        draft = DraftOptions("auto" if seed else "lookup", stop=0)
        return start(head_state(), LOOPING, params, depth=2, seed=seed, draft=draft)

    alone = [[e.token_ids for e in begin(seed)] for seed in range(3)]
    together = list(zip_longest(*(begin(seed) for seed in range(3))))
    for seed in range(3):
        mixed = [row[seed].token_ids for row in together if row[seed] is not None]
        assert mixed == alone[seed]


def test_decodes_in_threads_are_as_if_alone() -> None:
    """At the same time too."""

    def text(seed: int) -> list[int]:
        draft = DraftOptions()
        return finish(start(head_state(), LOOPING, LONG, depth=2, seed=seed, draft=draft))

    found: dict[int, list[int]] = {}

    def run(seed: int) -> None:
        try:
            found[seed] = text(seed)
        finally:
            mx.clear_streams()  # a thread that ends without may crash the process at its end

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {seed: text(seed) for seed in range(3)}


def watched_laws(used: list[str]) -> dict[str, verification.Law]:
    """The laws, each noting its name when it is asked."""

    def law(name: str) -> verification.Law:
        def asked(*arguments: Any) -> Acceptance:
            used.append(name)
            return verification.LAWS[name](*arguments)

        return asked

    return {name: law(name) for name in verification.LAWS}


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("name", verification.LAWS)
def test_the_law_of_the_request_decides(name: str, depth: int) -> None:
    """Where something is drawn; at temperature 0, where nothing is, rejection does."""
    for params, expected in ((SAMPLED, name), (GREEDY, "rejection")):
        used: list[str] = []
        with patch.object(rounds, "LAWS", watched_laws(used)):
            finish(start(head_state(), PROMPT, replace(params, law=name), depth=depth))
        assert set(used) == {expected}
