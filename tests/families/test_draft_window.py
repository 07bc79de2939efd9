"""A head that looks back over a window and the first tokens: other drafts, the same text."""

from dataclasses import replace

import mlx.core as mx
import pytest

from mtplx.models.drafter import HeadDrafter
from tests.families.proofs import TOKENS, Case, assert_text, made
from tests.families.test_deepseek import RECIPE as LATENT
from tests.families.test_mimo import RECIPE as GROUPED
from tests.tiny import HEAD_ALONE

RECIPES = {"grouped": GROUPED, "latent": LATENT}


@pytest.fixture(scope="module", params=RECIPES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return made(RECIPES[request.param], tmp_path_factory.mktemp("window"))


@pytest.mark.parametrize("depth", [1, 4])
def test_a_window_changes_neither_text_nor_state(case: Case, depth: int) -> None:
    """In grouped-query and in latent attention, wherever a draft goes wrong."""
    assert_text(case, depth, replace(HEAD_ALONE, window=8))


def test_a_window_changes_what_the_head_says(case: Case) -> None:
    """Only once there are more tokens than it reaches over."""
    hidden = case.target.forward(mx.array(TOKENS), case.target.make_cache())[:-1]
    outputs = []
    for window in (8, None):
        drafter = HeadDrafter(case.head)
        drafter.look_back(window)
        outputs.append(case.head.run(0, mx.array(TOKENS[1:]), hidden, drafter.modules[0]).output)
    differ = mx.max(mx.abs(outputs[0] - outputs[1]), axis=-1) > 1e-4
    assert differ.tolist() == [row >= 12 for row in range(len(TOKENS) - 1)]  # 8 and 4
