"""Texts of models with recurrent layers and windows; a script drafts, wrong at every place."""

import pytest

from mtplx.models.drafter import HeadDrafter
from mtplx.params import SamplingParams
from mtplx.state import DecodeState
from tests.greedy import same_greedy
from tests.tiny import ScriptedDrafter, finish, plain, random_prompt, start
from tests.undo.targets import assert_holds, drafter_of, target_of
from tests.undo.tiny_models import VOCAB_SIZE

PROMPT = random_prompt(12, vocab_size=VOCAB_SIZE)
SIXTY = SamplingParams(temperature=0.0, max_tokens=60)
NAMES = ["qwen3_5", "llama", "lfm2", "nemotron_h", "qwen3_next", "mimo_v2_flash", "kimi_linear"]
USUAL = {"qwen3_5", "llama"}


@pytest.mark.parametrize("depth", range(1, 6))
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in USUAL else pytest.mark.slow) for n in NAMES]
)
def test_the_text_is_the_plain_one_wherever_a_draft_is_wrong(name: str, depth: int) -> None:
    """Sixty tokens at temperature 0; drafts are wrong at each of their places in turn."""
    target = target_of(name)
    expected = plain(target, PROMPT, SIXTY)
    head = drafter_of(target).head
    script = ScriptedDrafter(
        target, PROMPT + expected, lambda position: position % (depth + 1), head
    )
    state = DecodeState(target, script)
    text = finish(start(state, PROMPT, SIXTY, depth=depth))
    assert same_greedy(target, PROMPT, text, expected)
    state.drafter = HeadDrafter(head)  # a script is no part of the state
    state.drafter.restore(script.snapshot(whole=True))
    if name not in {"nemotron_h"}:  # which reads a prompt in another way than tokens one by one
        assert_holds(state, [*PROMPT, *text[:-1]])
