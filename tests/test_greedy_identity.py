"""At temperature 0, drafting changes no token."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.greedy_identity import Finding, _first_difference, parse, summary
from mtplx.models.drafter import HeadDrafter
from mtplx.state import DecodeState
from mtplx.stats import DecodeStats
from tests.greedy import same_greedy
from tests.tiny import (
    ScriptedDrafter,
    finish,
    head_drafter,
    plain,
    random_prompt,
    start,
    tiny_target,
)

ROOT = Path(__file__).parents[1]
TARGET = tiny_target()
PROMPTS = [random_prompt(2 + i, seed=i) for i in range(50)]


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    """What plain decoding says to each prompt."""
    return [plain(TARGET, prompt) for prompt in PROMPTS]


def drafted(prompt: list[int], drafter: HeadDrafter, depth: int) -> tuple[list[int], DecodeStats]:
    stats = DecodeStats()
    state = DecodeState(TARGET, drafter)
    return finish(start(state, prompt, depth=depth, stats=stats)), stats


@pytest.mark.slow
@pytest.mark.parametrize("depth", range(1, 7))
def test_a_random_head_changes_no_token(depth: int, texts: list[list[int]]) -> None:
    """Drafts that are nearly always wrong leave 50 greedy texts as they are."""
    for prompt, text in zip(PROMPTS, texts, strict=True):
        found, stats = drafted(prompt, head_drafter(TARGET), depth)
        assert same_greedy(TARGET, prompt, text, found)
        assert len(stats.drafted) == depth


@pytest.mark.slow
@pytest.mark.parametrize("depth", range(1, 7))
def test_a_drafter_that_is_often_right_changes_no_token(depth: int, texts: list[list[int]]) -> None:
    """Drafts that are right up to a slip anywhere, or wholly, leave 50 greedy texts as they are."""
    accepted_whole = refused = 0
    for prompt, text in zip(PROMPTS, texts, strict=True):

        def slip_at(position: int) -> int:
            return (7 * position + position // 3) % (depth + 1)

        drafter = ScriptedDrafter(TARGET, [*prompt, *text], slip_at)
        found, stats = drafted(prompt, drafter, depth)
        assert same_greedy(TARGET, prompt, text, found)
        accepted_whole += stats.accepted[-1]
        refused += stats.drafted[0] - stats.accepted[0]
    assert accepted_whole > 0
    assert refused > 0


def identity(*arguments: str) -> tuple[int, str, str]:
    """Run the script in a process of its own, since this one has another BLAS in front."""
    command = [sys.executable, "-m", "benchmarks.greedy_identity", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_the_default_model_says_the_same_with_and_without_drafting(smollm2_path: Path) -> None:
    """Token ids of the real model with its real head are plain decoding's, bit for bit."""
    from mtplx.loading.find_head import find_head
    from mtplx.loading.fingerprint import fingerprint

    if find_head(smollm2_path, fingerprint(smollm2_path)) is None:
        pytest.skip("no MTP head for the default model is here")
    code, out, err = identity(
        *("--model", str(smollm2_path), "--prompts", "3", "--max-tokens", "10"),
        *("--depths", "2,5"),
    )
    assert code == 0, err
    result = json.loads(out.splitlines()[-1])
    assert result["identical"] is True
    assert result["prompts"] == 3
    assert result["plain_tokens"] > 10
    assert set(result["acceptance_length"]) == {"2", "5"}
    if sys.platform == "linux":
        assert result["blas"] == "mlx"


def test_a_difference_is_found_and_told() -> None:
    """A token that differs, or a text that ends early, is in the JSON with prompt and place."""
    tasks, _ = parse(["--prompts", "2", "--depths", "1,2"])
    place, end = _first_difference([5, 6, 7], [5, 9, 7]), _first_difference([5, 6, 7], [5, 6])
    assert (place, end) == (1, 2)
    counts = {1: 3, 2: 2}
    findings = [
        Finding(0, 3, {}, counts, {1: 3, 2: 3}, "mlx"),
        Finding(1, 3, {2: place}, counts, {1: 3, 2: 3}, "mlx"),
    ]
    result = summary(tasks, findings, 1.0)
    assert result["identical"] is False
    assert result["mismatches"] == [{"prompt": 1, "depth": 2, "position": 1}]
    assert result["acceptance_length"] == {"1": 1.0, "2": 1.5}


@pytest.mark.parametrize(
    "arguments", [("--depths", "0"), ("--depths", "1,x"), ("--prompts", "0"), ("--workers", "9")]
)
def test_a_comparison_that_cannot_be_meant_is_refused_in_one_line(
    arguments: tuple[str, str],
) -> None:
    """A slip in an option names it and its value, with exit code 2 and nothing on stdout."""
    code, out, err = identity(*arguments)
    assert (code, out) == (2, "")
    assert arguments[0] in err
    assert arguments[1] in err
    assert err.count("\n") == 1
