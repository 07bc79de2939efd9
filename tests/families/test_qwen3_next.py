"""Qwen3-Next: experts, in the trunk and in the head."""

import pytest

from tests.families.proofs import Case, assert_numbers, assert_text, made
from tests.families.qwen import QWEN3_NEXT


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return made(QWEN3_NEXT, tmp_path_factory.mktemp("qwen"))


def test_trunk_and_head_compute_what_the_reference_does(case: Case) -> None:
    """Within the bound, and no mutant is."""
    assert_numbers(case)


@pytest.mark.parametrize("depth", range(1, 6))
def test_drafting_changes_neither_text_nor_state(case: Case, depth: int) -> None:
    """At every depth, wherever a draft goes wrong."""
    assert_text(case, depth)
