"""The checks that run on every change: on both systems, with what a newcomer runs."""

import importlib
from pathlib import Path
from typing import Any

WORKFLOW = Path(__file__).parents[1] / ".github" / "workflows" / "ci.yml"


def steps() -> dict[str, list[str]]:
    """The commands of each job, by the system it runs on."""
    yaml: Any = importlib.import_module("yaml")  # huggingface_hub's; it has no types
    jobs = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"].values()
    return {
        job["runs-on"].partition("-")[0]: [step["run"] for step in job["steps"] if "run" in step]
        for job in jobs
    }


def test_linux_runs_what_a_newcomer_runs() -> None:
    assert steps()["ubuntu"] == [".ci/run"]


def test_a_mac_checks_tests_and_runs_the_kernels_on_its_gpu() -> None:
    commands = steps()["macos"]
    assert [command.split()[1] for command in commands] == ["check", "test", "slow", "test"]
    assert commands[-1].endswith("'-m metal'")
