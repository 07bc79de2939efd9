"""A reply that is recorded and written again takes the rounds that decoding takes."""

from typing import TYPE_CHECKING

import pytest

from mtplx.depth import fixed_depth
from mtplx.prompts import Prompt
from tests.recorded_replies import MAX_TOKENS, Machine, written_s

if TYPE_CHECKING:
    from mtplx.loading.load import LoadedModel

ROUNDS = Machine("rounds", "cpu", (1.0, 1.0), 0.0)  # whose time is the number of its rounds


@pytest.mark.slow
@pytest.mark.parametrize("text", ["Hello", "one, two, one, two, one, two, one"])
@pytest.mark.parametrize("depth", [0, 1, 2, 7])
def test_it_takes_as_many_rounds(tiny_model: "LoadedModel", text: str, depth: int) -> None:
    """With drafts of the head and of passages, that end where the head is unsure."""
    from benchmarks.record_replies import record
    from mtplx.bench.arms import make_cases
    from mtplx.generate import generate

    (case,) = make_cases(tiny_model, (Prompt("chat", text),), 1)
    reply = record(tiny_model, case)
    result = generate(tiny_model, text, depth=depth, temperature=0.0, max_tokens=MAX_TOKENS)
    assert list(result.token_ids) == reply.text
    assert written_s(reply, fixed_depth(depth), ROUNDS) == pytest.approx(result.stats.num_rounds)
