"""Where a head starts: the trunk's last layer, fed by a ridge regression onto its input.

The block is the trunk's last layer and the final norm is the trunk's. `eh_proj` is the closed-form
ridge solution that maps [norm(embedding of token i + 1); norm(h_i)] onto the unit-RMS input of
that layer at position i + 1; the residual stream is then some 30 times smaller than the trunk's,
so the block's two output projections are divided by the same factor. Untrained, such a head
already drafts, and it decides how far training gets.
"""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mtplx.cache import AttentionCache
from mtplx.models.head import BLOCK_FIELDS
from mtplx.models.llama import LlamaTarget, rows_after, run_block

RIDGE = 1e-3  # relative to the mean of the Gram matrix's diagonal
Floats = npt.NDArray[np.float64]


def _unit_rms(x: Floats) -> Floats:
    return np.asarray(x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-12))


def _last_layer_inputs(target: LlamaTarget, token_ids: mx.array) -> tuple[mx.array, mx.array]:
    """The last layer's input [B, T, D] and the hidden state after the final norm [B, T, D]."""
    x = target.embedding.rows(token_ids)
    cache = [AttentionCache() for _ in target.blocks]
    rows = rows_after(target.dims, 0, token_ids.shape[1])
    for block, layer in zip(target.blocks[:-1], cache[:-1], strict=True):
        x = run_block(target.dims, block, x, rows, layer)
    last = x
    x = run_block(target.dims, target.blocks[-1], x, rows, cache[-1])
    return last, target.normalise(x)


def initial_parameters(
    target: LlamaTarget, windows: Sequence[Sequence[int]], *, num_blocks: int = 1
) -> dict[str, mx.array]:
    """Head parameters in float32, from `windows` of token ids that are all of one length.

    40,000 tokens are enough for the default model; with 15,000 the regression overfits.
    """
    solution, scale = _regression(target, windows)
    width = target.dims.hidden_size
    parameters = {
        "enorm": mx.ones(width),
        "hnorm": mx.ones(width),
        "eh_proj": mx.array(np.ascontiguousarray(solution.T, np.float32)),
        "norm": target.final_norm.astype(mx.float32),
    }
    for i in range(num_blocks):
        # A further block starts as nothing: its output projections are zero.
        divisor = scale if i == 0 else np.inf
        for name in BLOCK_FIELDS:
            value = getattr(target.blocks[-1], name)
            array = value if isinstance(value, mx.array) else value.rows(mx.arange(value.shape[0]))
            array = array.astype(mx.float32)
            divided = array / divisor if name in ("output", "down") else array
            parameters[f"blocks.{i}.{name}"] = divided
    mx.eval(parameters)
    return parameters


def _regression(target: LlamaTarget, windows: Sequence[Sequence[int]]) -> tuple[Floats, float]:
    """eh_proj transposed [2 D, D], and the median RMS of the last layer's input."""
    width = target.dims.hidden_size
    gram, cross, scales = np.zeros((2 * width, 2 * width)), np.zeros((2 * width, width)), []
    for start in range(0, len(windows), 4):
        token_ids = mx.array([list(w) for w in windows[start : start + 4]])
        last, hidden = (np.array(a, np.float64) for a in _last_layer_inputs(target, token_ids))
        embedding = np.array(target.embedding.rows(token_ids), np.float64)
        pairs = [_unit_rms(embedding[:, 1:]), _unit_rms(hidden[:, :-1])]
        x = np.concatenate(pairs, axis=-1).reshape(-1, 2 * width)
        y = _unit_rms(last[:, 1:]).reshape(-1, width)
        gram, cross = gram + x.T @ x, cross + x.T @ y
        scales.append(np.sqrt((last[:, 1:] ** 2).mean(axis=-1)).ravel())
    ridge = RIDGE * np.trace(gram) / len(gram)
    solution = np.linalg.solve(gram + ridge * np.eye(2 * width), cross)
    return solution, float(np.median(np.concatenate(scales)))
