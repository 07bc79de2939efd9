"""Mistakes in the acceptance laws."""

from mtplx import coupled, rng, verification
from tests import test_verification
from tests.exact import test_coupled_text, test_joint_law
from tests.exact.mutants import Mutant, Property, edit, named
from tests.exact.settings import SETTINGS, examine

accepts, residual, verify = verification.accepts, verification.residual, verification.verify
block = verification.verify_block


def row(law: str, setting: str) -> tuple[str, Property]:
    """The enumeration of a setting under a law, and its test."""

    def exact() -> None:
        assert examine(law, SETTINGS[setting]()).faults(law) == []

    return named(test_joint_law.test_a_law_is_exact, law, setting)[0], exact


def on(law: str, setting: str, mistake: str, function: object, *replacements: str) -> Mutant:
    """A mutant that the enumeration of this setting catches."""
    change = edit(function, *replacements)  # type: ignore[arg-type]
    return Mutant(mistake, change, row(law, setting), (law, setting))


USUAL = "fixed depth, two tokens"

REJECTION = [
    on(
        *("rejection", USUAL, "a refused token is replaced from p", residual),
        *("difference = p - q if support is None else p.at[..., support].subtract(q)",),
        "difference = p",
    ).standing_for(3),
    on(
        *("rejection", USUAL, "a refused token is replaced from the absolute p - q", residual),
        *("mx.maximum(difference, 0)", "mx.abs(difference)"),
    ),
    on(
        *("rejection", USUAL, "everything is accepted", accepts),
        *("uniform * q < p", "0 * uniform * q < 1"),
    ).standing_for(7),
    on(
        *("rejection", USUAL, "accepted by q / p", accepts),
        *("uniform * q < p", "uniform * p < q"),
    ),
    on(
        *("rejection", USUAL, "accepted by p, as if the draft were certain", accepts),
        *("uniform * q < p", "uniform < p"),
    ),
    on(
        *("rejection", USUAL, "accepted with an epsilon in the ratio", accepts),
        *("uniform * q < p", "uniform < p / (q + 1e-9)"),
    ),
    Mutant(
        "accepted where u q = p",
        edit(accepts, "uniform * q < p", "uniform * q <= p"),
        named(test_verification.test_a_forbidden_token_is_refused_even_at_zero),
    ),
    on(
        *("rejection", USUAL, "q rounded to bfloat16 in the ratio", verification._drawn_probs),
        *("return drawn\n", "return drawn.astype(mx.bfloat16).astype(drawn.dtype)\n"),
    ).standing_for(9),
    on(
        *("rejection", USUAL, "the target's favourite is accepted besides", verify),
        *("kept = accepts(", "kept = (draft.token_ids == mx.argmax(p[:-1], axis=-1)) | accepts("),
    ).standing_for(6),
    on(
        *("rejection", USUAL, "tokens behind a refusal count", verify),
        *("mx.cumprod(kept.astype(mx.int32))", "kept.astype(mx.int32)"),
    ),
    on(
        *("rejection", USUAL, "the bonus token from the row before", verify),
        *("mx.take(p, num_accepted, axis=0)", "p[mx.minimum(num_accepted, num_draft - 1)]"),
    ),
    on(
        *("rejection", USUAL, "the bonus token from a residual", verify),
        *("num_draft - 1), refused)", "num_draft - 1), mx.array(True))"),
    ),
    on(
        *("rejection", USUAL, "the residual with the first token's q", verify),
        *("mx.minimum(num_accepted, num_draft - 1)", "mx.array(0)"),
    ),
    on(
        *("rejection", USUAL, "the favourite for a draw", verification._completed),
        *("draw(left + underflow * row, mx.take(uniforms.choose, num_accepted, axis=0))",),
        "mx.argmax(left + underflow * row)",
    ).standing_for(23),
    on(
        *("rejection", "one-hot", "half a q for a one-hot draft", verification._drawn_probs),
        *("mx.array(1.0)", "mx.array(0.5)"),
    ),
    on(
        *("rejection", "one-hot", "a refused one-hot token stays in", verification._proposal),
        *("* refused", "* (refused if draft.probs is not None else 0)"),
    ).standing_for(5),
    on(
        *("rejection", "shortlist q", "ids taken for columns", verification._drawn_probs),
        *("columns = mx.take(column_of, columns)", "columns = columns % draft.probs.shape[-1]"),
    ),
    on(
        *("rejection", "shortlist q", "columns taken for ids", verification._columns),
        *("return draft.support, draft.probs", "return mx.arange(2), draft.probs"),
    ),
    on(
        *("rejection", "shortlist q", "a residual of the shortlist alone", residual),
        "return mx.maximum(difference, 0)",
        "return mx.put_along_axis(0 * p, support, mx.maximum(difference, 0)[..., support], -1)",
    ),
    Mutant(
        "no way out of a residual without mass",
        edit(verification._completed, "underflow * row", "0 * row"),
        named(test_verification.test_a_residual_without_mass_falls_back_to_p_and_is_counted),
    ),
    *(
        Mutant(
            f"{law}: the distributions overwritten",
            edit(function, "num_draft = len(draft)", "num_draft = len(draft); p[0] = p[-1]"),
            named(test_joint_law.test_a_law_changes_none_of_its_inputs, law),
            seen=(11,),
        )
        for law, function in (("rejection", verify), ("block", block))
    ),
]

BLOCK = [
    on(
        *("block", USUAL, "a carried weight above 1", verification._carried),
        *("mx.where(q > p, p / mx.where(q > p, q, 1), p > 0)", "p / mx.where(q > 0, q, 1)"),
    ).standing_for(3),
    on(
        *("block", USUAL, "a lost weight that is never won back", block),
        *("_carried(carried[i] * p_drawn[i]", "carried[i] * _carried(p_drawn[i]"),
    ).standing_for(3),
    on(
        *("block", USUAL, "a prefix passes with its weight alone", block),
        *("[mass[1:], weights", "[weights[1:], weights"),
        *("[mass[1:] + (1 - weights[1:]), q", "[mx.ones_like(weights[1:]), q"),
    ).standing_for(3),
    on(
        *("block", USUAL, "the residual of rejection", block),
        *("residual(weights[:, None] * p[:-1]", "residual(p[:-1]"),
    ).standing_for(3),
    on(
        *("block", USUAL, "wrong from three tokens on", block),
        *("carried[i] * p_drawn[i]", "carried[0] * p_drawn[i]"),
    ).standing_for(4),
    on(
        *("block", USUAL, "the first test that fails ends the prefix", block),
        "mx.max(mx.arange(1, num_draft + 1) * passed)",
        "mx.sum(mx.cumprod(passed.astype(mx.int32)))",
    ).standing_for(3),
    on(
        *("block", USUAL, "the whole passes by its last ratio", block),
        *("weights[-1:] * p_drawn[-1:]", "p_drawn[-1:]"),
    ),
    on(
        *("block", USUAL, "the bonus token from a residual", block),
        *("[left, p[-1:]]", "[left, left[-1:]]"),
    ),
    on(
        *("block", USUAL, "one number for all tests", block),
        *("accepts(uniforms.accept,", "accepts(uniforms.accept[:1],"),
    ),
    on(
        *("block", USUAL, "block verification never runs", block),
        *("num_draft < 2", "num_draft < 99"),
    ).standing_for(4),
    on(
        *("block", "mixed positions", "one-hot tokens left in the residual", verification._columns),
        *("mx.take(mx.eye(num_draft, dtype=q.dtype), columns, axis=1)",),
        "mx.zeros((num_draft, len(one_hot)))",
    ),
    on(
        *("block", "mixed positions", "half a q for a one-hot token", verification._drawn_probs),
        *("mx.ones(len(draft), drawn.dtype)", "mx.full(len(draft), 0.5, drawn.dtype)"),
    ),
    on(
        *("block", "mixed positions", "the q of a neighbour", verification._columns),
        *("sampled.index(i) if", "0 if"),
    ),
    on(
        *("block", "one-hot, then shortlist", "ids that clash are overwritten", residual),
        *("p.at[..., support].subtract(q)",),
        "mx.put_along_axis(p, mx.broadcast_to(support, q.shape), mx.take(p, support, -1) - q, -1)",
    ),
]

COUPLED = [
    on(
        *("coupled", USUAL, "the draft is kept whatever the race says", coupled.verify_coupled),
        *("(chosen[:-1] == draft.token_ids)", "(draft.token_ids >= 0)"),
    ),
    on(
        *("coupled", USUAL, "noise of the position before", coupled.verify_coupled),
        *("exponentials(uniforms.noise, ids)",),
        "exponentials(mx.roll(uniforms.noise, 1, axis=0), ids)",
    ),
    on(
        *("coupled", USUAL, "a race by differences", coupled.race),
        *("argmin(noise / probs", "argmin(noise - probs"),
    ),
    on(
        *("coupled", USUAL, "tokens behind a refusal count", coupled.verify_coupled),
        *("mx.sum(mx.cumprod(agreed))", "mx.sum(agreed)"),
    ),
    Mutant(
        "noise of the round, not of the position",
        edit(
            rng.round_uniforms,
            "noise_keys(seed, position, num_draft + 1)",
            "mx.broadcast_to(noise_keys(seed, position, 1), (num_draft + 1, 2))",
        ),
        named(test_coupled_text.test_a_seed_gives_one_text_at_every_depth, "knowing head"),
    ),
]
