"""A head that looks back over a window and the first tokens: other drafts, the same text."""

from dataclasses import replace

import mlx.core as mx
import pytest

from mtplx.cache import SinkCache
from tests.families.proofs import TOKENS, Case, assert_text, made
from tests.families.test_deepseek import RECIPE as LATENT
from tests.families.test_mimo import RECIPE as GROUPED

RECIPES = {"grouped": GROUPED, "latent": LATENT}


@pytest.fixture(scope="module", params=RECIPES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    whole = made(RECIPES[request.param], tmp_path_factory.mktemp("window"))
    return replace(whole, head=replace(whole.head, window=8))


@pytest.mark.parametrize("depth", [1, 4])
def test_a_window_changes_neither_text_nor_state(case: Case, depth: int) -> None:
    """In grouped-query and in latent attention, wherever a draft goes wrong."""
    assert_text(case, depth)


def test_a_window_changes_what_the_head_says(case: Case) -> None:
    """Only once there are more tokens than it reaches over."""
    hidden = case.target.forward(mx.array(TOKENS), case.target.make_cache())[:-1]
    outputs = []
    for head in (case.head, replace(case.head, window=None)):
        (cache,) = head.make_cache()
        outputs.append(head.run(0, mx.array(TOKENS[1:]), hidden, cache).output)
        assert isinstance(cache[0], SinkCache) == (head.window is not None)
    differ = mx.max(mx.abs(outputs[0] - outputs[1]), axis=-1) > 1e-4
    assert differ.tolist() == [row >= 12 for row in range(len(TOKENS) - 1)]  # 8 and 4
