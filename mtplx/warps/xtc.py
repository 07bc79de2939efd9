"""XTC, exclude top choices: at some positions, only the least of the probable tokens is left."""

import mlx.core as mx

from mtplx.params import SamplingParams


def without_top_choices(probs: mx.array, gates: mx.array, params: SamplingParams) -> mx.array:
    """Probabilities [R, C], not normalised, without the tokens that reach the threshold but the
    last ranked of them, in the rows whose gate [R] opens.

    Of equal ones, the highest id is ranked last.
    """
    probable = (probs >= params.xtc_threshold) & (probs > 0)
    least = mx.min(mx.where(probable, probs, mx.inf), axis=-1, keepdims=True)
    columns = mx.arange(probs.shape[-1])
    spared = mx.max(mx.where(probable & (probs == least), columns, -1), axis=-1, keepdims=True)
    opens = (gates < params.xtc_probability)[:, None]
    return mx.where(probable & (columns != spared) & opens, 0, probs)
