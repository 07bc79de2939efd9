"""Known ways to get speculative sampling wrong, each put into the code, and each caught."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.exact.catalogue import CATALOGUE, MUTANTS, NUM_SEEN, table
from tests.exact.mutants import Mutant, edit

PAGE = Path(__file__).parents[2] / "docs" / "exactness.md"
PROPERTIES = {mutant.caught_by[0]: mutant.caught_by[1] for mutant in MUTANTS if not mutant.row}


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_mistake_is_caught(mutant: Mutant) -> None:
    """The property beside it fails once the mistake is in the code."""
    assert mutant.is_caught()


@pytest.mark.slow  # these calls are tests of their own
@pytest.mark.parametrize("name", PROPERTIES)
def test_what_catches_a_mistake_holds_without_one(name: str) -> None:
    """The same call passes on the code as it is."""
    PROPERTIES[name]()


def test_every_fault_of_other_runtimes_has_its_mutants() -> None:
    """Each number of the page's list is stood for."""
    stood_for = {number for mutant in MUTANTS for number in mutant.seen}
    assert stood_for == set(range(1, NUM_SEEN + 1))


def test_the_page_lists_every_mutant_with_its_test_and_its_faults() -> None:
    """The table in docs/exactness.md is the catalogue."""
    assert PAGE.read_text().endswith(f"|---|---|---|\n{table()}\n"), (
        "put what `python -m tests.exact --mutants` prints at the end of the page"
    )


def test_the_readme_counts_the_mutants() -> None:
    """As many as there are."""
    readme = (PAGE.parents[1] / "README.md").read_text()
    assert f"must catch {len(MUTANTS)} deliberate mistakes" in readme


def test_mistakes_have_names_of_their_own() -> None:
    """No two mutants of one place are called alike."""
    for mutants in CATALOGUE.values():
        assert len({mutant.mistake for mutant in mutants}) == len(mutants)


def half(x: float) -> float:
    return x / 2


def test_an_edit_reaches_every_caller_and_leaves_no_trace() -> None:
    """A function that was imported under another name has the mistake, until the context ends."""
    elsewhere: Callable[[float], float] = half
    with edit(half, "x / 2", "x / 3")():
        assert elsewhere(6) == 2
    assert elsewhere(6) == 3
    with pytest.raises(ValueError, match="stands 0 times"), edit(half, "x / 9", "x")():
        pass
