"""What benchmarks/accepted_tokens.py counts."""

import json
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from benchmarks.accepted_tokens import MODES, Row, parse, summary, table
from benchmarks.fixed_drafts import Watch, expected_of_drawn
from mtplx.errors import UsageError
from mtplx.params import SamplingParams
from mtplx.state import DecodeState
from tests.exact import scenes
from tests.exact.closed_forms import expected_accepted
from tests.tiny import finish, head_drafter, random_prompt, start, tiny_target

ROOT = Path(__file__).parents[1]


def test_over_all_drafts_each_figure_is_the_closed_form_of_its_law() -> None:
    """Weighted with how likely each draft is, the figures of drafts add up to theory's."""
    scene = scenes.sampled(3, 3, 3, seed=2)
    totals = dict.fromkeys(("rejection", "block", "coupled"), 0.0)
    for draft in product(range(3), repeat=3):
        q = np.stack([scene.proposal((), draft[:i]) for i in range(3)])
        ids = np.array(draft, dtype=np.int32)
        found = expected_of_drawn(scene.target((), draft)[:-1], ids, q)
        assert found["block"] >= found["rejection"] - 1e-15
        for law, value in found.items():
            totals[law] += value * float(q[np.arange(3), ids].prod())
    for law, total in totals.items():
        assert total == pytest.approx(expected_accepted(replace(scene, law=law)), abs=1e-12)


def test_looking_at_other_drafts_changes_no_text() -> None:
    """A decode writes what it writes without the watch, which sees every round that drafts."""
    target, params = tiny_target(), SamplingParams(temperature=0.8, max_tokens=12)
    prompt = random_prompt(7)
    for seed in range(4):
        alone = finish(
            start(DecodeState(target, head_drafter(target)), prompt, params, depth=3, seed=seed)
        )
        state = DecodeState(target, head_drafter(target))
        assert state.drafter is not None
        watch = Watch(state.drafter, state, params, seed, 3, tuple(MODES))
        state.drafter = watch
        assert finish(start(state, prompt, params, depth=3, seed=seed)) == alone
        assert watch.seen
        assert all(set(MODES.values()) < set(seen) for seen in watch.seen)


def test_a_row_tells_where_it_falls_short() -> None:
    """Block behind rejection, or the online mode more than 2 % behind the best fixed one."""
    row = Row(0.7, "code", rounds=10, online=5.9, accepted=6, modes={"sampled": 10})
    row.expected = {"rejection": 5.0, "block": 6.0, "coupled": 4.0, "greedy": 3.0}
    assert row.best_fixed == 0.6
    assert row.online_share == pytest.approx(1.59 / 1.6)
    assert not row.falls_short
    assert "code" in table([row])
    assert replace(row, online=5.0).falls_short
    assert replace(row, expected={**row.expected, "rejection": 6.1}).falls_short
    result = summary([row, replace(row, online=5.0)], parse([]), "mlx", 1.0)
    assert json.loads(json.dumps(result))["falls_short"] == ["code at 0.7"]


@pytest.mark.parametrize(
    "arguments", [("--temps", "0"), ("--temps", "x"), ("--depth", "0"), ("--max-tokens", "0")]
)
def test_a_measurement_that_cannot_be_meant_is_refused(arguments: tuple[str, str]) -> None:
    """A slip in an option names it and its value."""
    with pytest.raises(UsageError, match=f"{arguments[0]} is .*{arguments[1]}"):
        parse(arguments)


@pytest.mark.slow
def test_the_default_model_is_measured_in_one_run(smollm2_path: Path) -> None:
    """A table, and a last line of JSON with a row for each class and temperature."""
    command = [sys.executable, "-m", "benchmarks.accepted_tokens", "--model", str(smollm2_path)]
    command += ["--prompts", "1", "--max-tokens", "8", "--classes", "chat", "--temps", "1,0.7"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if "no MTP head" in done.stderr:
        pytest.skip("no MTP head for the default model is here")
    rows = json.loads(done.stdout.splitlines()[-1])["rows"]
    assert [row["temperature"] for row in rows] == [1.0, 0.7]
    assert all(row["rounds"] > 0 and row["block"] >= row["rejection"] for row in rows)
