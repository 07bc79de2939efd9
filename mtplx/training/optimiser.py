"""The optimiser: Muon for matrices, AdamW for vectors.

Muon (Keller Jordan et al., 2024; scaled as by Liu et al., arXiv 2502.16982) steps along the
momentum with its singular values set to about one, so that no direction of a matrix is starved.
On the default model's head, 150 steps over new text ended at a loss of 2.18; AdamW's at 2.27.
"""

from dataclasses import dataclass

import mlx.core as mx

Parameters = dict[str, mx.array]

MOMENTUM = 0.95  # of matrices
BETA_1, BETA_2 = 0.9, 0.95  # of vectors
DECAY = 0.1  # of matrices, times the rate
_QUINTIC = (3.4445, -4.7750, 2.0315)  # Jordan's: steep at 0, near 1 from 0.3 on
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Optimiser:
    """first: running means of gradients. second: of their squares, for vectors only."""

    first: Parameters
    second: Parameters
    num_steps: int = 0


def begin(parameters: Parameters) -> Optimiser:
    """The optimiser before its first step."""
    zeros = {name: mx.zeros_like(value) for name, value in parameters.items()}
    return Optimiser(zeros, {name: zero for name, zero in zeros.items() if zero.ndim < 2})


def update(
    parameters: Parameters, gradients: Parameters, state: Optimiser, rate: float
) -> tuple[Parameters, Optimiser]:
    """One step, the gradient clipped to norm 1. A matrix's entries move by 0.2 rates (RMS)."""
    # In an order of their own: parameters that were read from a file come in another one.
    squares = (gradients[name].square().sum() for name in sorted(gradients))
    norm = mx.sqrt(sum(squares, mx.array(0.0)))
    clip = mx.minimum(1.0, 1.0 / (norm + 1e-6))
    num_steps = state.num_steps + 1
    correct_1, correct_2 = 1 - BETA_1**num_steps, 1 - BETA_2**num_steps
    first, second, updated = {}, {}, {}
    for name, value in parameters.items():
        g = gradients[name] * clip
        if value.ndim < 2:
            first[name] = BETA_1 * state.first[name] + (1 - BETA_1) * g
            second[name] = BETA_2 * state.second[name] + (1 - BETA_2) * g.square()
            change = (first[name] / correct_1) / (mx.sqrt(second[name] / correct_2) + 1e-8)
            updated[name] = value - rate * change
        else:
            first[name] = MOMENTUM * state.first[name] + (1 - MOMENTUM) * g
            ahead = MOMENTUM * first[name] + (1 - MOMENTUM) * g
            change = orthogonal(ahead) * (0.2 * max(value.shape) ** 0.5)
            updated[name] = value * (1 - rate * DECAY) - rate * change
    return updated, Optimiser(first, second, num_steps)


def orthogonal(matrix: mx.array) -> mx.array:
    """[N, M] with the singular vectors of `matrix` and singular values of about 0.7 to 1.2.

    By a Newton-Schulz iteration, so with products alone. Singular values below a thousandth of
    the matrix's norm come out smaller.
    """
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = wide / (mx.sqrt(wide.square().sum()) + 1e-20)
    a, b, c = _QUINTIC
    for _ in range(_ROUNDS):
        gram = x @ x.T
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x if wide is matrix else x.T
