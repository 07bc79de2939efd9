"""The options about drafts on a command line."""

import json
from pathlib import Path

from tests.cli.conftest import Run

REPEATED = "one two three one two three one two three one two"


def test_draft_options_reach_the_model(mtplx: Run, tiny: Path, tiny_head: Path) -> None:
    """Law, mode and the rest are what the JSON tells of."""
    asked = ("generate", "--model", tiny, "--head", tiny_head, "--json", "--depth", "3", REPEATED)
    options = ("--law", "coupled", "--draft", "greedy", "--draft-stop", "0", "--draft-window", "4")
    told = json.loads(
        mtplx(*asked, *options, "--no-lookup", "--temp", "0.9", "--max-tokens", "12").out
    )
    assert told["law"] == "coupled"
    assert list(told["drafts"]) == ["greedy"]
    assert len(told["acceptance_per_position"]) == 3


def test_a_model_without_a_head_can_draft_what_recurs(mtplx: Run, tiny: Path) -> None:
    """--draft lookup needs none, and nothing is said about its lack."""
    asked = ("generate", "--model", tiny, "--json", "--raw", "--draft", "lookup", REPEATED)
    ran = mtplx(*asked, "--temp", "0", "--max-tokens", "12")
    assert json.loads(ran.out)["draft_mode"] == "lookup"
    assert "No drafting" not in ran.err


def test_wrong_draft_options_are_one_line(mtplx: Run, tiny: Path) -> None:
    """What was wrong, its value and what it may be, before the model is read."""
    wrong = (
        (("--law", "exact"), "law is 'exact'"),
        (("--draft", "fast"), "mode is 'fast'"),
        (("--draft-stop", "2"), "stop is 2.0"),
        (("--draft-window", "-1"), "'--draft-window'"),
    )
    for options, message in wrong:
        ran = mtplx("generate", "--model", tiny, *options, "hello")
        assert ran.code != 0
        assert message in ran.err
        assert ran.err.count("\n") == 1
