"""When two greedy texts count as the same."""

from collections.abc import Sequence

import mlx.core as mx

from mtplx.blas import serving
from mtplx.speculation import Target

NEAR_TIE = 1e-4  # of the largest logit


def same_greedy(
    target: Target, prompt: Sequence[int], one: Sequence[int], other: Sequence[int]
) -> bool:
    """Equal ids; with a BLAS that is not MLX's own, also ids that part at a near tie.

    Such a library adds up in another order for another number of rows, so that two logits closer
    than `NEAR_TIE` may change places. What follows is then another text.
    """
    if list(one) == list(other):
        return True
    if serving().name == "mlx":
        return False
    pairs = enumerate(zip(one, other, strict=False))
    place = next((i for i, (a, b) in pairs if a != b), None)
    if place is None:
        return False  # one is longer
    before = mx.array([*prompt, *one[:place]])
    hidden = target.normalise(target.forward(before, target.make_cache()))
    logits = target.logits(hidden[-1:])[0]
    gap = mx.abs(logits[one[place]] - logits[other[place]])
    return bool((gap <= NEAR_TIE * mx.max(mx.abs(logits))).item())
