"""Under the coupled law a seed decides the text, whoever drafts and however deep."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mtplx.blas import serving
from mtplx.draft_options import DraftOptions
from mtplx.models.drafter import HeadDrafter
from mtplx.models.head import LlamaHead
from mtplx.models.shortlist import make_shortlist
from mtplx.state import DecodeState
from mtplx.stats import DecodeStats
from tests.exact.coupled_text import (
    COUPLED,
    PROMPT,
    WHOLE_DRAFTS,
    all_depths,
    changed_texts,
    gentle_target,
    knowing_head,
    one_depth,
    two_depths,
    writers,
)
from tests.exact.forced import EVERYTHING
from tests.tiny import finish, head_drafter, start

ROOT = Path(__file__).parents[2]
DRAFTERS = ("knowing head", "random head", "constant head", "lookup")


@pytest.mark.parametrize("name", writers())
def test_a_seed_gives_one_text_at_every_depth(name: str) -> None:
    """Depths 1 to 7 write what plain decoding writes, on one state that goes from text to text."""
    assert changed_texts(writers()[name], all_depths(3)) == ([], 21)


@pytest.mark.parametrize("name", ["knowing head", "random head on a hybrid"])
def test_a_seed_gives_one_text_under_all_warps(name: str) -> None:
    """Likewise with penalties, DRY, XTC, filters and a processor at once."""
    params = replace(EVERYTHING, law="coupled", max_tokens=8)
    assert changed_texts(writers()[name], two_depths(2), params) == ([], 4)


@pytest.mark.slow
@pytest.mark.skipif(serving().name not in ("mlx", "accelerate"), reason="rounds blocks otherwise")
@pytest.mark.parametrize("name", DRAFTERS)
def test_200_seeds_give_one_text_at_every_depth(name: str) -> None:
    """Each of the depths 1 to 7 for every seventh seed, and plain decoding for all of them."""
    assert changed_texts(writers()[name], one_depth(200)) == ([], 200)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="MLX on macOS has Accelerate")
@pytest.mark.skipif(serving().name == "mlx", reason="this run is the exact one")
def test_with_mlxs_own_blas_no_text_changes() -> None:
    """All of this file once more where a block is computed like single rows, bit for bit."""
    command = [sys.executable, "-m", "pytest", "--blas", "mlx", str(Path(__file__))]
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=900
    )
    assert "blas: mlx" in result.stdout
    assert result.returncode == 0, result.stdout


def test_noise_belongs_to_the_token_not_to_its_column() -> None:
    """A head that drafts from a shortlist in an order of its own is accepted as often."""
    target, accepted = gentle_target(), []
    in_order = np.arange(target.vocab_size, dtype=np.int32)
    for ids in (in_order, np.random.default_rng(0).permutation(in_order)):
        shortlist = make_shortlist(target.lm_head, mx.array(ids))
        state = DecodeState(target, HeadDrafter(LlamaHead(target, knowing_head(target)), shortlist))
        stats = DecodeStats()
        for seed in range(6):
            finish(
                start(state, PROMPT, COUPLED, depth=3, seed=seed, stats=stats, draft=WHOLE_DRAFTS)
            )
        accepted.append(stats.accepted)
    assert accepted[0] == accepted[1]
    assert accepted[0][0] > 10


@pytest.mark.parametrize("law", ["block", "rejection", "coupled"])
def test_a_drafter_that_is_the_target_is_never_refused(law: str) -> None:
    """Where q is p up to rounding, every law keeps every token, at every place of a draft."""
    target, params = gentle_target(0.0), replace(COUPLED, law=law)
    state = DecodeState(target, head_drafter(target, knowing_head(target, 0.0)))
    options = DraftOptions("sampled", temperature=params.temperature, lookup=False, stop=0.0)
    stats = DecodeStats()
    for seed in range(10):
        finish(start(state, PROMPT, params, depth=4, seed=seed, stats=stats, draft=options))
    assert stats.acceptance_per_position == [1.0] * 4
    assert stats.draft_mode == "sampled"
