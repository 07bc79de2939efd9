"""The first four tokens of a model with recurrent state have the target's joint law."""

import numpy as np
import pytest

from mtplx.blas import serving
from tests.exact.closed_forms import expected_accepted
from tests.exact.draws import assert_fits
from tests.exact.enumeration import drafted_law, mean_accepted
from tests.exact.hybrid_law import NUM_TOKENS, decoded_counts, decoded_scene, plain_texts
from tests.exact.scene import JointLaw, Prefix, total_variation
from tests.hybrid import hybrid_target

# Other BLAS libraries than MLX's own round a block otherwise than single rows.
BOUND = 1e-12 if serving().name == "mlx" else 1e-5
STOP_ID = 6


@pytest.mark.parametrize("stop_id", [pytest.param(None, marks=pytest.mark.slow), STOP_ID])
def test_drafting_has_the_law_of_plain_decoding(stop_id: int | None) -> None:
    """Enumerated: rounds of depth 0 to 2 of one state that goes back to shared prefixes, with every
    draft, against uncached passes over every text."""
    target = hybrid_target()
    scene = decoded_scene(target, stop_id)
    assert total_variation(plain_texts(target, stop_id), drafted_law(scene)) < BOUND
    assert mean_accepted(scene) == pytest.approx(expected_accepted(scene), abs=1e-12)


@pytest.mark.slow
def test_decodes_have_the_law_of_plain_decoding() -> None:
    """Real decodes of depth 0 to 3 on one state: single tokens, pairs, and how texts end."""
    law, num_texts = plain_texts(hybrid_target(), STOP_ID), 600
    counts = decoded_counts(hybrid_target(), num_texts, STOP_ID)
    assert max(counts.values()) < num_texts / 2
    for kept in [(0,), (1,), (2,), (3,), (0, 1), (1, 2), (2, 3)]:
        observed, due = _margin(dict(counts), kept), _margin(law, kept)
        cells = sorted(due)
        assert set(observed) <= set(cells)
        assert_fits(
            np.array([observed.get(cell, 0) for cell in cells]),
            num_texts * np.array([due[cell] for cell in cells]),
        )


def _margin(law: JointLaw, kept: tuple[int, ...]) -> JointLaw:
    """The law of the tokens at these places; -1 where a text has ended."""
    result: dict[Prefix, float] = {}
    for text, probability in law.items():
        padded = (*text, *[-1] * (NUM_TOKENS - len(text)))
        cell = tuple(padded[i] for i in kept)
        result[cell] = result.get(cell, 0) + probability
    return result
