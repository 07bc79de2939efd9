"""Acceptance measured without decoding, against the drafter at work and sums over all tokens."""

import math

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from mtplx.models.drafter import HeadDrafter
from mtplx.models.head import dense_head
from mtplx.models.shortlist import make_shortlist
from mtplx.speculation import DraftInput
from mtplx.training.acceptance import judged, measure, measure_judged
from mtplx.training.initialise import initial_parameters
from mtplx.training.own_text import Framing, Passage, write_replies
from tests.tiny import head_drafter, random_prompt, tiny_head, whole_vocabulary
from tests.training.small import foreseeable_target

DEPTH = 4
TARGET = foreseeable_target(spread=0.3)
# One that is right about every other time, as a random head never is.
HEAD = dense_head(initial_parameters(TARGET, [random_prompt(64, seed=n) for n in range(16)]), 1)
WHOLE = list(range(64))
PART = sorted({0, 3, *range(5, 60, 2)})
LISTS = pytest.mark.parametrize("ids", [WHOLE, PART], ids=["all tokens", "some tokens"])
Written = list[tuple[Passage, int]]
Doubles = npt.NDArray[np.float64]


def replies(temperature: float) -> Written:
    messages = [("chat", random_prompt(n, seed=n)) for n in (5, 9, 7)]
    framing = Framing((1, 2), (3, 4), (3, 2), frozenset())
    return write_replies(TARGET, framing, messages, temperature=temperature, num_tokens=18, seed=1)


def anchors(written: Written) -> list[tuple[Passage, int]]:
    """All rows of replies after which the drafts, and what is compared with them, lie in them."""
    return [
        (passage, anchor)
        for passage, first in written
        for anchor in range(first, len(passage.token_ids) - 1 - DEPTH)
    ]


def truth(passage: Passage, anchor: int) -> list[int]:
    """The tokens that drafts after `anchor` are compared with."""
    return [int(token_id) for token_id in passage.token_ids[anchor + 2 : anchor + 2 + DEPTH]]


def drafter_at(passage: Passage, anchor: int) -> tuple[HeadDrafter, DraftInput]:
    """A drafter that has seen everything before `anchor`, and the row it drafts from."""
    drafter = head_drafter(TARGET, HEAD)
    hidden = mx.array(passage.hidden).astype(mx.float32)
    following = mx.array(passage.token_ids[1:])
    if anchor:
        drafter.observe(DraftInput(hidden[:anchor], following[:anchor]))
    return drafter, DraftInput(hidden[anchor : anchor + 1], following[anchor : anchor + 1])


def drafted_logits(passage: Passage, anchor: int) -> Doubles:
    """[DEPTH, V]: what the drafter says after the true tokens, one by one."""
    drafter, row = drafter_at(passage, anchor)
    tokens, seen = truth(passage, anchor), []

    def follow_the_truth(logits: mx.array, step: int) -> tuple[mx.array, None]:
        seen.append(np.array(logits[0], np.float64))
        return mx.array([tokens[step]], dtype=mx.int32), None

    drafter.propose(row, DEPTH, follow_the_truth)
    return np.array(seen)


def trunk_logits(passage: Passage, anchor: int, shift: int = 0) -> Doubles:
    """[DEPTH, V]: what the trunk says at the places of the drafts, from the tokens alone."""
    state = TARGET.forward(mx.array(passage.token_ids), TARGET.make_cache())
    logits = np.array(TARGET.logits(TARGET.normalise(state)), np.float64)
    return np.asarray(logits[anchor + 1 + shift : anchor + 1 + shift + DEPTH])


def softmax(x: Doubles) -> Doubles:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def draft_probs(logits: Doubles, ids: list[int], temperature: float) -> Doubles:
    """q over the whole vocabulary: nothing outside `ids`."""
    q = np.zeros_like(logits)
    q[:, ids] = softmax(logits[:, ids] / temperature)
    return q


@LISTS
def test_greedy_acceptance_is_what_the_drafter_gets_right(ids: list[int]) -> None:
    """Position by position, with the true tokens before it, as the drafter itself drafts them."""
    written = replies(0.0)
    right = []
    for passage, anchor in anchors(written):
        best = np.array(ids)[drafted_logits(passage, anchor)[:, ids].argmax(axis=-1)]
        right.append(best == truth(passage, anchor))
    shortlist = make_shortlist(TARGET.lm_head, mx.array(ids, dtype=mx.int32))
    found = measure(TARGET, HEAD, shortlist, written, 0.0, DEPTH)
    assert found.num_anchors == len(right) > 30
    assert np.any(right)
    assert not np.all(right)
    assert found.per_position == pytest.approx(np.mean(right, axis=0), abs=1e-9)


def test_greedy_tokens_per_round_are_those_of_free_drafts() -> None:
    """Drafts that go on from themselves, not from the truth, agree with it for as long."""
    written = replies(0.0)
    agreed = []
    for passage, anchor in anchors(written):
        drafter, row = drafter_at(passage, anchor)
        draft = drafter.propose(row, DEPTH, lambda logits, _: (mx.argmax(logits, axis=-1), None))
        matches = np.array(draft.token_ids) == truth(passage, anchor)
        agreed.append(int(np.cumprod(matches).sum()))
    found = measure(TARGET, HEAD, whole_vocabulary(TARGET), written, 0.0, DEPTH)
    expected = [1 + float(np.minimum(agreed, k).mean()) for k in range(1, DEPTH + 1)]
    assert max(agreed) >= 2
    assert found.tokens_per_round == pytest.approx(expected, abs=1e-9)


@LISTS
@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize("shift", [0, 1])
def test_acceptance_is_the_overlap_of_the_distributions(
    ids: list[int], temperature: float, shift: int
) -> None:
    """The sum over the whole vocabulary of min(p, q), on average over positions."""
    written = replies(temperature)
    overlaps = []
    for passage, anchor in anchors(written):
        if anchor + 1 + shift + DEPTH >= len(passage.token_ids):
            continue
        p = softmax(trunk_logits(passage, anchor, shift) / temperature)
        q = draft_probs(drafted_logits(passage, anchor), ids, temperature)
        overlaps.append(np.minimum(p, q).sum(axis=-1))
    shortlist = make_shortlist(TARGET.lm_head, mx.array(ids, dtype=mx.int32))
    found = measure(TARGET, HEAD, shortlist, written, temperature, DEPTH, shift)
    assert found.num_anchors == len(overlaps)
    assert found.per_position == pytest.approx(np.mean(overlaps, axis=0), abs=2e-3)


@LISTS
def test_sampled_tokens_per_round_follow_the_text_that_was_drawn(ids: list[int]) -> None:
    """The product of min(1, q / p) at the drawn tokens, whose mean is the chance of a chain."""
    written, temperature = replies(0.7), 0.7
    chains = []
    for passage, anchor in anchors(written):
        at = (range(DEPTH), truth(passage, anchor))
        p = softmax(trunk_logits(passage, anchor) / temperature)[at]
        q = draft_probs(drafted_logits(passage, anchor), ids, temperature)[at]
        chains.append(np.cumprod(np.minimum(1, q / p)))
    shortlist = make_shortlist(TARGET.lm_head, mx.array(ids, dtype=mx.int32))
    found = measure(TARGET, HEAD, shortlist, written, temperature, DEPTH)
    assert found.tokens_per_round == pytest.approx(1 + np.cumsum(np.mean(chains, axis=0)), abs=5e-3)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_shifted_target_is_another_measurement(temperature: float) -> None:
    """The control does not compare with the distribution that the head is trained for."""
    written = replies(temperature)
    arguments = (TARGET, HEAD, whole_vocabulary(TARGET), written, temperature, DEPTH)
    right, control = measure(*arguments), measure(*arguments, shift=1)
    assert control.per_position != pytest.approx(right.per_position, abs=1e-3)
    assert control.num_anchors == right.num_anchors - len(written)


def test_judging_once_is_as_good_as_judging_each_time() -> None:
    """What is kept of the trunk's opinion serves any head."""
    written = replies(0.7)
    kept = [judged(TARGET, passage, first, 0.7) for passage, first in written]
    shortlist = whole_vocabulary(TARGET)
    for seed in (3, 4):
        head = tiny_head(seed, TARGET.dims)
        again = measure_judged(TARGET, head, shortlist, kept, 0.7, DEPTH)
        assert again == measure(TARGET, head, shortlist, written, 0.7, DEPTH)


def test_replies_that_are_too_short_measure_nothing() -> None:
    """Without an anchor the figures are not numbers, and no warning is raised."""
    passage, first = replies(0.0)[0]
    short = Passage(passage.token_ids[: first + 4], passage.hidden[: first + 4], "chat")
    for temperature in (0.0, 0.7):
        found = measure(TARGET, HEAD, whole_vocabulary(TARGET), [(short, first)], temperature)
        assert found.num_anchors == 0
        assert all(map(math.isnan, (*found.per_position, *found.tokens_per_round)))
    longer = measure(TARGET, HEAD, whole_vocabulary(TARGET), [(short, first), *replies(0.0)], 0.0)
    assert longer == measure(TARGET, HEAD, whole_vocabulary(TARGET), replies(0.0), 0.0)
