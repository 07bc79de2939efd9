"""Whole decodes by kernels that the emulator runs."""

from dataclasses import replace

import pytest

from mtplx.kernels import sampler
from mtplx.params import SamplingParams
from mtplx.state import DecodeState
from mtplx.stats import DecodeStats
from tests.kernels.hosts import fast
from tests.kernels.platforms import needs_linux
from tests.tiny import finish, head_drafter, random_prompt, start, tiny_target

TARGET = tiny_target()
PROMPT = random_prompt(7)
SAMPLED = SamplingParams(temperature=0.9, max_tokens=8)


def text(params: SamplingParams, depth: int) -> tuple[list[int], int]:
    """Of one seed, and how many drafted tokens it accepted."""
    state, stats = DecodeState(TARGET, head_drafter(TARGET)), DecodeStats()
    emitted = finish(start(state, PROMPT, params, depth=depth, seed=5, stats=stats))
    return emitted, sum(stats.accepted)


@needs_linux
@pytest.mark.parametrize(("law", "depth"), [("rejection", 0), ("rejection", 3), ("block", 3)])
@pytest.mark.parametrize("filters", [{}, {"top_k": 20, "top_p": 0.9}, {"repetition_penalty": 1.4}])
def test_a_seed_gives_the_same_text(
    filters: dict[str, float], law: str, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without kernels: drafts, acceptance, and what replaces a refused token."""
    params = replace(SAMPLED, law=law, **filters)  # type: ignore[arg-type]  # one table
    expected = text(params, depth)
    monkeypatch.setattr(sampler, "kernels_here", lambda maker=None: fast)
    assert text(params, depth) == expected
