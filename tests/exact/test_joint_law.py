"""Whole texts have the target's distribution, to the last bits of float64."""

from dataclasses import replace
from unittest.mock import patch

import mlx.core as mx
import numpy as np
import pytest

from mtplx import sampling
from mtplx.speculation import Draft, Uniforms
from mtplx.verification import LAWS as LAW_FUNCTIONS
from tests.exact import scenes
from tests.exact.closed_forms import expected_accepted, gains
from tests.exact.enumeration import drafted_law, step_positions
from tests.exact.scene import Floats, plain_law, total_variation
from tests.exact.settings import LAWS, SETTINGS, TOLERANCE, Setting, examine

SIZES = [(2, 4, 4), (3, 2, 4), (4, 4, 2)]
"""(vocabulary, draft tokens per round, tokens of a text)"""


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("law", LAWS)
def test_a_law_is_exact(law: str, setting: str) -> None:
    """Texts have the target's distribution, and as many drafted tokens are accepted as theory says:
    by block never fewer than by rejection, and more wherever a lost weight can be won back."""
    assert examine(law, SETTINGS[setting]()).faults(law) == []


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("law", LAWS)
def test_a_law_is_exact_in_any_size(law: str, size: tuple[int, int, int]) -> None:
    """Likewise for other vocabularies and depths, with zeros in p and q."""
    setting = Setting([(1.0, scenes.sparse(*size, seed=sum(size)))])
    assert examine(law, setting).faults(law) == []


@pytest.mark.parametrize("law", ["rejection", "block"])
def test_a_drawn_token_must_not_be_discarded(law: str) -> None:
    """Dropping a drawn token for being improbable changes the distribution, under each law."""
    scene = replace(scenes.discarding(3, 3, 3, seed=9), law=law)
    assert total_variation(plain_law(scene), drafted_law(scene)) > 0.05


@pytest.mark.parametrize("law", ["rejection", "block"])
@pytest.mark.parametrize("temperature", [0, 0.6])
def test_a_q_that_a_draft_was_not_drawn_from_is_not_exact(law: str, temperature: float) -> None:
    """Handing over the q of temperature 1 for an argmax, or for a sharper draw, is seen."""
    scene = replace(scenes.misdrafted(3, 2, 3, seed=1, temperature=temperature), law=law)
    assert total_variation(plain_law(scene), drafted_law(scene)) > 0.01


def test_block_gains_nothing_from_one_token_or_from_certain_ones() -> None:
    """With one drafted token, or with one-hot drafts, the laws accept equally many."""
    for scene in (scenes.sampled(4, 1, 3, seed=5), scenes.one_hot(3, 4, 3, seed=5)):
        assert not gains(scene)
        block, rejection = (replace(scene, law=law) for law in ("block", "rejection"))
        assert expected_accepted(block) == pytest.approx(expected_accepted(rejection), abs=1e-14)


@pytest.mark.parametrize("law", LAWS)
def test_a_law_changes_none_of_its_inputs(law: str) -> None:
    """Probabilities, draft and random numbers are the same before and after."""
    rng = np.random.default_rng(5)
    p, q = rng.dirichlet(np.ones(16), size=4), rng.dirichlet(np.ones(5), size=2)
    ids, support = [3, 9, 3], [9, 3, 0, 15, 2]
    inputs = [
        mx.array(x)
        for x in (p.astype(np.float32), q.astype(np.float32), ids, support, [0.2, 0.9, 0.4])
    ]
    choose, keys = mx.array(rng.random((4, 2)).astype(np.float32)), mx.arange(8).reshape(4, 2)
    inputs += [choose, keys.astype(mx.uint32)]
    before = [np.array(x) for x in inputs]
    draft = Draft(inputs[2], inputs[1], inputs[3], sampled=(0, 2))
    mx.eval(LAW_FUNCTIONS[law](inputs[0], draft, Uniforms(*inputs[4:])).token_ids)
    assert all(np.array_equal(np.array(x), b) for x, b in zip(inputs, before, strict=True))


@pytest.mark.parametrize("law", LAWS)
def test_without_a_draft_nothing_is_accepted(law: str) -> None:
    """An empty draft gives one token of the one row, no accepted one and no fallback."""
    p = mx.array([[0.0, 0.0, 1.0]])
    keys = mx.array([[1, 2]], dtype=mx.uint32)
    uniforms = Uniforms(mx.zeros(0), mx.array([[0.3, 0.6]]), keys)
    found = LAW_FUNCTIONS[law](p, Draft(mx.zeros(0, dtype=mx.int32)), uniforms)
    assert [x.item() for x in (found.num_accepted, found.num_underflows)] == [0, 0]
    assert np.array(found.token_ids).tolist() == [2]


@pytest.mark.parametrize("vocab_size", [5, 600])
def test_a_draw_has_the_distribution_it_is_given(vocab_size: int) -> None:
    """Both levels of the draw step exactly where the running sums of the probabilities do."""
    probs = np.random.default_rng(0).dirichlet(np.full(vocab_size, 0.3))
    probs[np.random.default_rng(1).random(vocab_size) < 0.4] = 0
    probs /= probs.sum()
    segments = np.arange(vocab_size) // sampling._SEGMENT
    mass = np.bincount(segments, weights=probs)

    def drawn(first: Floats, second: Floats) -> Floats:
        with mx.stream(mx.cpu):
            pairs = mx.array(np.stack([first, second], axis=-1), dtype=mx.float64)
            column = mx.vmap(sampling.draw, in_axes=(None, 0))
            return np.array(column(mx.array(probs, dtype=mx.float64), pairs))

    half, due = np.full(len(mass), 0.5), np.cumsum(mass).astype(np.float64)
    ends = step_positions(
        lambda u: drawn(u, half) // sampling._SEGMENT <= np.arange(len(mass)), due
    )
    assert np.abs(ends - due).max() < TOLERANCE
    inside = (np.concatenate([[0], ends])[segments] + ends[segments]) / 2
    before = due[segments] - mass[segments]
    guess = np.clip((np.cumsum(probs) - before) / np.maximum(mass[segments], 1e-300), 0, 1)
    within = step_positions(lambda u: drawn(inside, u) <= np.arange(vocab_size), guess)
    assert np.abs(before + within * mass[segments] - np.cumsum(probs)).max() < TOLERANCE


def test_a_wrong_guess_of_theory_costs_time_alone() -> None:
    """What is measured is where the code steps, wherever it was looked for first."""
    places = np.array([0.0, 0.3, 0.7, 1.0])
    found = step_positions(lambda u: u < places, np.array([0.5, 0.1, 0.7, 0.2]))
    assert np.abs(found - places).max() < 1e-14
    with patch("tests.exact.enumeration.thresholds") as theory:
        theory.side_effect = lambda law, p, drafts, q: _nonsense(p)
        scene = replace(scenes.sampled(3, 2, 2, seed=1), law="block")
        assert total_variation(plain_law(scene), drafted_law(scene)) < TOLERANCE


def _nonsense(p: Floats) -> object:
    from tests.exact.closed_forms import Thresholds

    return Thresholds(np.full((len(p), p.shape[1] - 1), 0.77), np.full_like(p[..., 1:], 0.01))
