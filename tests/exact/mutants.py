"""Known ways to get speculative sampling wrong, and what it takes to call one caught.

A mutant replaces a production function by a plausible mistake; the property named beside it, which
holds for the code as it is and is a test of its own, has to fail.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest

from tests.exact import scenes
from tests.exact.test_joint_law import WARPS, assert_exact


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mistake, the function it is put in place of, and the property that has to notice it."""

    mistake: str
    place: Any
    name: str
    replacement: Any
    caught_by: Callable[[], None]

    def __str__(self) -> str:
        return self.mistake


def assert_caught(mutant: Mutant) -> None:
    """The property fails once the mistake is in the code."""
    with patch.object(mutant.place, mutant.name, mutant.replacement), pytest.raises(AssertionError):
        mutant.caught_by()


def sampled() -> None:
    """Texts are exact with drafts drawn from q."""
    assert_exact(scenes.sampled(3, 2, 3, seed=1))


def one_hot() -> None:
    """Texts are exact with greedy drafts."""
    assert_exact(scenes.one_hot(3, 2, 3, seed=1))


def shortlist() -> None:
    """Texts are exact with drafts from a part of the vocabulary."""
    assert_exact(scenes.shortlist(3, 2, 3, seed=1))


def penalties() -> None:
    """Texts are exact where every row is penalised for its own history."""
    assert_exact(scenes.warped(WARPS["counts"], 3, 2, 4, seed=3))
