"""Mistakes in acceptance, residual and bonus, each put into the code and each caught."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest

from mtplx import verification
from mtplx.speculation import Acceptance, Draft, Uniforms
from tests import test_verification
from tests.exact import scenes
from tests.exact.mutants import Mutant, assert_caught, one_hot, sampled, shortlist
from tests.exact.test_joint_law import assert_exact

Change = Callable[[mx.array, Draft, Uniforms], tuple[mx.array, Draft, Uniforms]]

drawn_probs, proposal = verification._drawn_probs, verification._proposal
residual, verify = verification.residual, verification.verify


def law(change: Change) -> dict[str, verification.Law]:
    """A law that verifies something other than what it was given."""

    def changed(p: mx.array, draft: Draft, uniforms: Uniforms) -> Acceptance:
        return verify(*change(p, draft, uniforms))

    return {"rejection": changed}


def shortcut(p: mx.array, draft: Draft, uniforms: Uniforms) -> tuple[mx.array, Draft, Uniforms]:
    same = draft.token_ids == mx.argmax(p[:-1], axis=-1)
    return p, draft, Uniforms(mx.where(same, 0, uniforms.accept), uniforms.choose)


def overwrite(p: mx.array, draft: Draft, uniforms: Uniforms) -> tuple[mx.array, Draft, Uniforms]:
    p[0] = mx.zeros_like(p[0])
    return p, draft, uniforms


def bonus_row(p: mx.array, draft: Draft, uniforms: Uniforms) -> tuple[mx.array, Draft, Uniforms]:
    return mx.concatenate([p[:-1], p[-2:-1]]) if len(draft) else p, draft, uniforms


def columns_of_ids(draft: Draft, vocab_size: int) -> mx.array:
    assert draft.probs is not None
    columns = draft.token_ids % draft.probs.shape[-1]
    return mx.take_along_axis(draft.probs, columns[:, None], axis=-1)[:, 0]


def ids_of_columns(draft: Draft, index: mx.array, refused: mx.array) -> Any:
    _, q = proposal(draft, index, refused)
    return mx.arange(q.shape[-1]), q


def within_support(p: mx.array, support: mx.array, q: mx.array) -> mx.array:
    inside = mx.put_along_axis(mx.zeros_like(p), support, mx.ones_like(q), axis=0)
    return residual(p, support, q) * inside


def no_proposal(draft: Draft, index: mx.array, refused: mx.array) -> Any:
    return proposal(draft, index, mx.zeros_like(refused))


MUTANTS = [
    Mutant("resample from p", verification, "residual", lambda p, s, q: p, sampled),
    Mutant("resample from |p - q|", verification, "residual", lambda p, s, q: abs(p - q), sampled),
    Mutant("accept always", verification, "accepts", lambda u, p, q: u < 2 + p, sampled),
    Mutant("accept by q / p", verification, "accepts", lambda u, p, q: u * p < q, sampled),
    Mutant("accept by p alone", verification, "accepts", lambda u, p, q: u < p + 0 * q, sampled),
    Mutant(
        "accept with an epsilon",
        verification,
        "accepts",
        lambda u, p, q: u < p / (q + 1e-6),
        sampled,
    ),
    Mutant(
        "accept with <=",
        verification,
        "accepts",
        lambda u, p, q: u * q <= p,
        test_verification.test_a_forbidden_token_is_refused_even_at_zero,
    ),
    Mutant(
        "q in the ratio rounded to bfloat16",
        verification,
        "_drawn_probs",
        lambda d, v: drawn_probs(d, v).astype(mx.bfloat16).astype(mx.float64),
        sampled,
    ),
    Mutant("accept the target's argmax too", verification, "LAWS", law(shortcut), sampled),
    Mutant("bonus from the row before", verification, "LAWS", law(bonus_row), sampled),
    Mutant(
        "bonus from the residual",
        verification,
        "_proposal",
        lambda d, i, r: proposal(d, i, mx.array(True)),
        sampled,
    ),
    Mutant(
        "residual with the q of the first row",
        verification,
        "_proposal",
        lambda d, i, r: proposal(d, mx.array(0), r),
        sampled,
    ),
    Mutant("accepted tokens after a refusal", mx, "cumprod", lambda kept: kept, sampled),
    Mutant(
        "one-hot draft with half a q",
        verification,
        "_drawn_probs",
        lambda d, v: mx.array(0.5),
        one_hot,
    ),
    Mutant("one-hot token left in the residual", verification, "_proposal", no_proposal, one_hot),
    Mutant("ids taken for columns", verification, "_drawn_probs", columns_of_ids, shortlist),
    Mutant("columns taken for ids", verification, "_proposal", ids_of_columns, shortlist),
    Mutant("residual on the shortlist only", verification, "residual", within_support, shortlist),
    Mutant(
        "no way out of an underflow",
        mx,
        "logical_and",
        lambda a, b: mx.zeros_like(a),
        test_verification.test_a_residual_without_mass_falls_back_to_p_and_is_counted,
    ),
    Mutant(
        "inputs overwritten",
        test_verification,
        "LAWS",
        law(overwrite),
        test_verification.test_verification_changes_none_of_its_inputs,
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_wrong_law_is_caught(mutant: Mutant) -> None:
    """Each mistake makes the property beside it fail."""
    assert_caught(mutant)


@pytest.mark.parametrize("temperature", [0, 0.6])
def test_a_q_that_the_draft_was_not_drawn_from_is_caught(temperature: float) -> None:
    """Handing over the q of temperature 1 for an argmax, or for a sharper draw, is not exact."""
    with pytest.raises(AssertionError):
        assert_exact(scenes.misdrafted(3, 2, 3, seed=1, temperature=temperature))


@pytest.mark.parametrize("prove", [sampled, one_hot, shortlist])
def test_the_right_law_passes_what_catches_the_wrong_ones(prove: Callable[[], None]) -> None:
    """The small scenes that catch the mutants are exact without a mistake."""
    prove()
