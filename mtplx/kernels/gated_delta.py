"""The gated delta rule over a block of tokens, and the state after its first ones.

    S_t = g_t S_(t-1) + d_t k_t',   d_t = beta_t (v_t - g_t S_(t-1) k_t),   y_t = S_t q_t

(Yang et al., arXiv 2412.06464). A block reads and writes the state once. Its tokens are taken in
their order by the same operations whatever their number, so that a block gives, bit for bit, what
its tokens give one at a time, and so does folding a part of it again.
"""

from dataclasses import dataclass
from functools import cache

import mlx.core as mx

from mtplx.kernels.source import Kernel, Maker, Template, header, metal

KEY_MULTIPLE = 8  # of the size of a key
_MOST_LANES = 8  # that share a row of the state; more have less to hold and more to add up
_THREADS = 128

_STEP = (
    "const DeltaShape shape = "
    "{uint(v_shape[1]), uint(k_shape[2]), uint(v_shape[2]), uint(v_shape[3])};\n"
    "delta_step<T, DK, LANES, TILED, PER_KEY>(q, k, v, g, beta, before, y, written, after, shape, "
    "thread_position_in_grid.x, thread_position_in_grid.y);"
)
_REFOLD = (
    "const DeltaShape shape = {uint(written_shape[1]), uint(k_shape[2]), uint(written_shape[2]), "
    "uint(written_shape[3])};\n"
    "delta_refold<T, DK, TILED, PER_KEY>(k, written, g, before, after, shape, uint(count), "
    "thread_position_in_grid.x, thread_position_in_grid.y, thread_position_in_grid.z);"
)


@dataclass(frozen=True, slots=True)
class DeltaTape:
    """What T tokens wrote into a state, which gives the state after any of them.

    before: [B, H, Dv, Dk] float32, the state before them. keys: [B, T, Hk, Dk]. decay: the g_t,
    [B, T, H] or [B, T, H, Dk]. written: the d_t, float32 [B, T, H, Dv]. tiled: as for `step`.
    """

    before: mx.array
    keys: mx.array
    decay: mx.array
    written: mx.array
    tiled: bool = False
    maker: Maker = metal

    def state_after(self, num_tokens: int) -> mx.array:
        """The state [B, H, Dv, Dk] after the first of the tokens, none to all of them."""
        return refold(self, mx.array(num_tokens))


def step(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    decay: mx.array,
    beta: mx.array,
    state: mx.array,
    *,
    tiled: bool = False,
    maker: Maker = metal,
) -> tuple[mx.array, mx.array, DeltaTape]:
    """Outputs [B, T, H, Dv] in the dtype of q, the state after T tokens, and their tape.

    q, k: [B, T, Hk, Dk] of one floating dtype, Dk a multiple of 8; v: [B, T, H, Dv]; decay: the g_t
    themselves, float32, [B, T, H] or [B, T, H, Dk]; beta: [B, T, H]; state: [B, H, Dv, Dk] float32.
    tiled: head h of v goes with head h % Hk of k, and not with h // (H / Hk).
    """
    batch, _, heads, rows = v.shape
    lanes = _lanes(k.shape[-1])
    across = -(-rows * lanes // 32) * 32
    y, written, after = _step_kernel(maker)(
        inputs=[q, k, v, decay, beta, state],
        template=[*_template(k, decay, tiled), ("LANES", lanes)],
        grid=(across, batch * heads, 1),
        threadgroup=(min(across, _THREADS), 1, 1),
        output_shapes=[v.shape, v.shape, state.shape],
        output_dtypes=[q.dtype, mx.float32, mx.float32],
    )
    return y, after, DeltaTape(state, k, decay, written, tiled, maker)


def refold(tape: DeltaTape, num_tokens: mx.array) -> mx.array:
    """The state [B, H, Dv, Dk] after the first tokens of a block. No weights are read.

    num_tokens: integer without dimensions, 0 to T. It may be computed on the GPU: no shape depends
    on it.
    """
    batch, heads, rows, width = tape.before.shape
    quads = width // 4
    return _refold_kernel(tape.maker)(
        inputs=[tape.keys, tape.written, tape.decay, tape.before, num_tokens],
        template=_template(tape.keys, tape.decay, tape.tiled),
        grid=(quads, rows, batch * heads),
        threadgroup=(min(quads, _THREADS), max(1, _THREADS // quads), 1),
        output_shapes=[tape.before.shape],
        output_dtypes=[mx.float32],
    )[0]


def _template(k: mx.array, decay: mx.array, tiled: bool) -> Template:
    return [
        ("T", k.dtype),
        ("DK", k.shape[-1]),
        ("TILED", tiled),
        ("PER_KEY", decay.ndim == 4),
    ]


def _lanes(width: int) -> int:
    """Lanes that share a row, each with as many quads of it."""
    lanes = _MOST_LANES
    while width % (4 * lanes):
        lanes //= 2
    return lanes


@cache
def _step_kernel(maker: Maker) -> Kernel:
    inputs = ("q", "k", "v", "g", "beta", "before")
    outputs = ("y", "written", "after")
    return maker("delta_step", inputs, outputs, _STEP, header(("gated_delta",)))


@cache
def _refold_kernel(maker: Maker) -> Kernel:
    inputs = ("k", "written", "g", "before", "count")
    return maker("delta_refold", inputs, ("after",), _REFOLD, header(("gated_delta",)))
