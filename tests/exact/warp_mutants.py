"""Mistakes in the warps and in the histories that they look at."""

from mtplx import sampling
from mtplx.warps import dry, filters, history, penalties, ranking, scores, typical, xtc
from tests import test_sampling
from tests.exact.law_mutants import on
from tests.exact.mutants import Mutant, edit, named
from tests.warps import test_filters, test_scores


def under(setting: str, mistake: str, function: object, *replacements: str) -> Mutant:
    """A mutant that the enumeration of a warp under block verification catches."""
    return on("block", f"p: {setting}", mistake, function, *replacements)


WARPS = [
    under(
        *("penalties", "penalties stand still in a block", penalties.seen),
        *("(order < ahead[:, None])", "(order < 0)"),
    ).standing_for(12),
    under(
        *("penalties", "every row sees the whole draft", penalties.seen),
        *("(order < ahead[:, None])", "(order < len(draft))"),
    ),
    under(
        *("penalties", "the last token is not seen", penalties.seen),
        *("committed = np.asarray(history.token_ids[starts[0] :]",),
        "committed = np.asarray(history.token_ids[starts[0] : -1]",
    ).standing_for(12),
    under(
        *("repetition", "a window of the rejected tokens too", penalties.seen),
        *("- reach + ahead, 0", "- reach + 0 * ahead + len(draft), 0"),
    ),
    under(
        *("repetition", "repetition divides what it should multiply", penalties.penalised),
        *("mx.where(before > 0, before / factor, before * factor)", "before / factor"),
    ),
    under(
        *("temperature", "the default fields", sampling.warp),
        *("if not params.filters:", "params = SamplingParams()\n    if not params.filters:"),
        *("/ params.temperature, 1e-37", "/ SamplingParams().temperature, 1e-37"),
    ).standing_for(10),
    under(
        *("temperature", "temperature 1 whatever is asked", sampling.warp),
        *("/ params.temperature, 1e-37", "/ 1, 1e-37"),
    ).standing_for(8),
    under(
        *("all at once", "filters before the temperature", sampling.warp),
        "filtered(exponents, params",
        "filtered(exponents * params.temperature ** 4, params",
    ),
    under(
        *("top-k, top-p, min-p", "top-p of the whole in place of the top k", filters.kept),
        *("(mass[:, top_k - 1 : top_k] if top_k else total)", "total"),
    ),
    under(
        *("top-p", "top-p drops the token that reaches it", filters.kept),
        *("1 + mx.sum(mass < needed", "mx.sum(mass < needed"),
    ),
    under(
        *("min-p", "min-p above and not at the threshold of the sum", filters.kept),
        *("ranked >= params.min_p", "ranked >= params.min_p * total"),
    ),
    under(
        *("typical-p", "the most surprising are typical", typical.closeness),
        *("-mx.abs(", "mx.abs("),
    ),
    under(
        *("DRY", "DRY stands still in a block", dry.without_repetition),
        *("lengths[i] for i in ahead.tolist()", "lengths[0] for i in ahead.tolist()"),
    ),
    under(
        *("DRY", "DRY a token too late", dry._penalties),
        *("excess >= 0", "excess > 0"),
    ),
    under(
        *("processor", "processors miss the token before", scores.processed),
        *("committed + draft[:ahead]", "(committed + draft[:ahead])[:-1]"),
    ).standing_for(13),
    under(
        *("processor", "processors see the whole draft", scores.processed),
        *("committed + draft[:ahead]", "committed + draft"),
    ),
    under(
        *("XTC integrated out", "XTC drawn anew for each row of a round", xtc.without_top_choices),
        *("gates < params.xtc_probability", "gates[::-1] < params.xtc_probability"),
    ),
    under(
        *("XTC integrated out", "XTC takes the last probable token too", xtc.without_top_choices),
        *("& (columns != spared)", ""),
    ),
    Mutant(
        "ties at the edge are all kept",
        edit(ranking.at_least, "above | (equal & ", "above | (equal | "),
        named(test_sampling.test_of_equal_tokens_the_lowest_ids_are_kept, {"top_k": 3}, 3),
    ),
    Mutant(
        "missing candidates go unnoticed",
        edit(
            filters._probable,
            "~(last <= mx.min(weights, axis=-1, keepdims=True))",
            "(last <= 2)",
        ),
        named(test_sampling.test_a_flat_row_says_that_it_needs_a_full_sort),
    ),
    Mutant(
        "NaN goes unnoticed",
        edit(sampling.warp, "mx.isfinite(peak)[:, 0]", "mx.ones(len(peak)) > 0"),
        named(test_sampling.test_rows_that_are_no_logits_are_flagged, [float("nan"), 0, 1], {}),
    ),
    Mutant(
        "a mask that lets one more through",
        edit(
            scores.allowed,
            "nothing = mx.full(scores.shape, -mx.inf",
            "nothing = mx.full(scores.shape, -9.0",
        ),
        named(test_scores.test_only_allowed_tokens_are_left),
    ),
    Mutant(
        "XTC before the filters",
        edit(
            filters.filtered,
            "if params.excludes_top_choices:\n        assert",
            "probs = softmax(exponents) if ids is None else probs\n"
            "    if params.excludes_top_choices:\n        assert",
        ),
        named(test_filters.test_xtc_thresholds_what_the_filters_before_it_left),
    ),
    Mutant(
        "rows that see one drafted token too many",
        edit(
            history.History.num_ahead,
            "np.arange(num_drafted - num_rows + 1, num_drafted + 1)",
            "np.minimum(np.arange(num_drafted - num_rows + 2, num_drafted + 2), num_drafted)",
        ),
        named(test_scores.test_a_processor_sees_at_every_row_what_plain_decoding_would_show_it),
    ),
]
