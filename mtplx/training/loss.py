"""Cross-entropy of the head's draft distribution against the trunk's, cheap on a CPU.

Its gradient is that of KL(p || q). p is held as the trunk's largest probabilities over the
shortlist; their sum is 1.
"""

import mlx.core as mx

LEAST = -100.0  # below that the polynomial of fast_exp no longer falls


def fast_exp(x: mx.array) -> mx.array:
    """exp(x) for x <= 0 to 0.2 % down to x = -10, by (1 + y + y²/2 + y³/6)^64, y = x / 64.

    MLX's exp on a CPU is scalar and would take most of the training time; these are plain
    products that vectorise. What lies below e^-10 has no weight in a gradient; it comes out
    between 0 and its value.
    """
    y = mx.maximum(x, LEAST) * (1 / 64)
    e = 1 + y * (1 + y * (0.5 + y * (1 / 6)))
    for _ in range(6):
        e = e * e
    return e


@mx.custom_function
def softmax_and_loss(
    logits: mx.array, top_ids: mx.array, top_probs: mx.array
) -> tuple[mx.array, mx.array]:
    """Loss [N] and q [N, S] from logits [N, S], p's columns [N, K] and probabilities [N, K].

    Only the loss has a gradient, and only with respect to the logits.
    """
    shifted = logits - logits.max(axis=-1, keepdims=True)
    weights = fast_exp(shifted)
    total = weights.sum(axis=-1, keepdims=True)
    log_q = mx.take_along_axis(shifted, top_ids, axis=-1) - mx.log(total)
    return -(top_probs * log_q).sum(axis=-1), weights / total


@softmax_and_loss.vjp
def _softmax_and_loss_vjp(
    primals: tuple[mx.array, mx.array, mx.array],
    cotangents: tuple[mx.array, mx.array],
    outputs: tuple[mx.array, mx.array],
) -> tuple[mx.array, mx.array, mx.array]:
    _, top_ids, top_probs = primals
    q = outputs[1]
    at_top = mx.take_along_axis(q, top_ids, axis=-1) - top_probs
    gradient = mx.put_along_axis(q, top_ids, at_top, axis=-1) * cotangents[0][:, None]
    return gradient, mx.zeros_like(top_ids), mx.zeros_like(top_probs)
