"""The gated delta rule over a block of tokens: a kernel on Metal, products on a CPU.

    S_t = g_t S_(t-1) + d_t k_t',   d_t = beta_t (v_t - g_t S_(t-1) k_t),   y_t = S_t q_t

(Yang et al., arXiv 2412.06464). Done one token at a time, every step reads and writes the whole
state several times. Here the state is read once for all tokens of a block, what they write follows
from a triangular system as large as the block (section 3.3 there), and the state after any of them
is one more product. Rounding differs from stepping in the last bits, so where MLX's own BLAS
serves, which computes a block of rows like single rows, mlx-lm's steps stay. On Metal our kernel
steps (mtplx.kernels.gated_delta).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn

from mtplx.blas import serving
from mtplx.kernels.gated_delta import KEY_MULTIPLE, step
from mtplx.kernels.source import Maker, metal
from mtplx.models.rebound import rebound

UPDATE = "gated_delta_update"  # what mlx-lm's mixers call the recurrence
MAX_ROWS = 32  # of a block; longer passes are cut


class Writing(Protocol):
    """What a pass wrote into a state, which gives the state after any of its tokens."""

    def state_after(self, num_tokens: int) -> mx.array: ...


@dataclass(frozen=True, slots=True)
class Written:
    """What T tokens wrote into a state, which gives the state after any of them.

    before: [B, H, Dv, Dk] float32, the state before them. decay: [B, H, T], logarithms of how much
    of that is left after each token. keys: [B, H, T, Dk]. values: [B, H, T, Dv], the d_t.
    """

    before: mx.array
    decay: mx.array
    keys: mx.array
    values: mx.array

    def state_after(self, num_tokens: int) -> mx.array:
        """The state [B, H, Dv, Dk] after the first one or more of the tokens."""
        decay = self.decay[..., :num_tokens]
        last = decay[..., -1:]
        left = mx.exp(last - decay)[..., None] * self.values[..., :num_tokens, :]
        return mx.addmm(
            self.before * mx.exp(last)[..., None],
            left.swapaxes(-1, -2),
            self.keys[..., :num_tokens, :],
        )


def delta_block(
    q: mx.array, k: mx.array, v: mx.array, decay: mx.array, beta: mx.array, state: mx.array
) -> tuple[mx.array, Written]:
    """Outputs [B, T, H, Dv] in the dtype of q, and what the tokens wrote.

    q, k: [B, T, Hk, Dk], normalised; v: [B, T, H, Dv]; decay: [B, T, H], logarithms of g; beta:
    [B, T, H]; state: [B, H, Dv, Dk] float32. Each head of q and k serves H / Hk consecutive ones.
    """
    num_tokens, shared = q.shape[1], v.shape[2] // k.shape[2]
    queries, keys = (_by_head(x, shared) for x in (q, k))
    values, writes = _by_head(v), beta.astype(mx.float32).swapaxes(1, 2)[..., None]
    total = mx.cumsum(decay.swapaxes(1, 2), axis=-1)
    both = mx.concatenate([keys, queries], axis=2)
    found = both @ state.swapaxes(-1, -2)  # [B, H, 2 T, Dv]
    found = found * mx.exp(mx.concatenate([total, total], axis=-1))[..., None]
    alike = both @ keys.swapaxes(-1, -2) * mx.tile(_between(total), (1, 1, 2, 1))
    written = writes * (values - found[..., :num_tokens, :])
    if num_tokens > 1:
        system = mx.eye(num_tokens) + mx.tril(writes * alike[..., :num_tokens, :], -1)
        written = mx.linalg.tri_inv(system, stream=mx.cpu) @ written
    y = found[..., num_tokens:, :] + alike[..., num_tokens:, :] @ written
    return y.swapaxes(1, 2).astype(q.dtype), Written(state, total, keys, written)


def delta_blocks(
    q: mx.array, k: mx.array, v: mx.array, decay: mx.array, beta: mx.array, state: mx.array
) -> tuple[mx.array, mx.array, Written | None]:
    """Outputs and the state behind any number of tokens, as of `delta_block`.

    Also what was written, where one block held them all.
    """
    outputs = []
    written = None
    for start in range(0, q.shape[1], MAX_ROWS):
        rows = [x[:, start : start + MAX_ROWS] for x in (q, k, v, decay, beta)]
        y, written = delta_block(rows[0], rows[1], rows[2], rows[3], rows[4], state)
        state = written.state_after(y.shape[1])
        outputs.append(y)
    if len(outputs) == 1:
        return outputs[0], state, written
    return mx.concatenate(outputs, axis=1), state, None


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A mixer's part in a pass of T tokens, where that is one convolution and one delta rule.

    conv_input: [B, taps - 1 + T, C], of which the first rows are from before. places: where among
    the layer's arrays the convolution's and the rule's state are.
    """

    written: Writing
    conv_input: mx.array
    places: tuple[int, int]
    num_rows: int

    def arrays_after(self, num_tokens: int) -> dict[int, mx.array]:
        """The layer's arrays by index after the first one or more tokens."""
        end = self.conv_input.shape[1] - self.num_rows + num_tokens
        rows = self.conv_input[:, num_tokens:end]
        return {self.places[0]: rows, self.places[1]: self.written.state_after(num_tokens)}


def recurrence(
    written: Writing,
    after: mx.array,
    conv_input: mx.array,
    arrays: Sequence[mx.array | None],
    num_rows: int,
) -> Recurrence | None:
    """How to undo by these alone; None for a layer whose arrays are others.

    after: the state that the pass left. arrays: all that the layer holds after the pass.
    """
    places = [i for i, array in enumerate(arrays) if array is after]
    if len(arrays) != 2 or len(places) != 1:
        return None
    other = arrays[1 - places[0]]
    batch, length, channels = conv_input.shape
    if other is None or other.shape != (batch, length - num_rows, channels):
        return None
    return Recurrence(written, conv_input, (1 - places[0], places[0]), num_rows)


class Notes(Protocol):
    """Where a pass keeps what was written, or finds it again (tape.Projecting)."""

    def note(self, written: Writing | None, after: mx.array) -> None: ...

    def noted(self) -> tuple[Writing, int] | None: ...


class HasNotes(Protocol):
    """tape.Recorder."""

    @property
    def tape(self) -> Notes | None: ...


@dataclass(frozen=True, slots=True)
class Rule:
    """A way to compute the rule. run: arguments and results as `delta_blocks`.

    by_key: whether decays may differ by key column. key_multiple: what Dk has to be a multiple of.
    """

    run: Callable[..., tuple[mx.array, mx.array, Writing | None]]
    by_key: bool = False
    key_multiple: int = 1

    def fits(self, k: mx.array, gates: mx.array) -> bool:
        return gates.ndim <= 3 + self.by_key and k.shape[-1] % self.key_multiple == 0


def rule_here(maker: Maker | None = None) -> Rule | None:
    """How this machine computes the rule best; None for mlx-lm's own way.

    maker: who runs the kernel, where it is not MLX on a Mac's GPU.
    """
    on_gpu = mx.default_device() == mx.Device(mx.gpu)
    if maker is None and on_gpu and mx.metal.is_available():
        maker = metal
    if maker is not None:
        return Rule(partial(_by_kernel, maker), by_key=True, key_multiple=KEY_MULTIPLE)
    return None if on_gpu or serving().name == "mlx" else Rule(delta_blocks)


def _by_kernel(
    maker: Maker,
    q: mx.array,
    k: mx.array,
    v: mx.array,
    decay: mx.array,
    beta: mx.array,
    state: mx.array,
) -> tuple[mx.array, mx.array, Writing | None]:
    """As `delta_blocks`; decay may also be [B, T, H, Dk]."""
    y, state, tape = step(q, k, v, mx.exp(decay), beta, state, maker=maker)
    return y, state, tape if q.shape[1] <= MAX_ROWS else None


def with_rule(
    run: Callable[..., mx.array], recorder: HasNotes, maker: Maker | None = None
) -> Callable[..., mx.array]:
    """A mixer's call in which the gated delta rule is computed as is best here (`rule_here`).

    It is the same code; only the name of the recurrence means another function in it.
    """
    rule = rule_here(maker)
    if UPDATE not in run.__code__.co_names or rule is None:
        return run
    update = _updating(run.__globals__[UPDATE], rule, recorder)
    return rebound(run, **{UPDATE: update})


def _updating(original: Callable[..., Any], rule: Rule, recorder: HasNotes) -> Callable[..., Any]:
    """mlx-lm's gated_delta_update by another rule, where that fits."""

    def update(
        q: mx.array,
        k: mx.array,
        v: mx.array,
        a: mx.array,
        b: mx.array,
        log_rate: mx.array,
        bias: mx.array,
        state: mx.array | None = None,
        mask: mx.array | None = None,
        **more: Any,
    ) -> Any:
        is_plain = not more.keys() - {"use_kernel"} and mask is None
        if not is_plain or not rule.fits(k, a):  # padding, another kind of gate
            return original(q, k, v, a, b, log_rate, bias, state, mask, **more)
        if state is None:
            state = mx.zeros((*v.shape[:1], *v.shape[2:], k.shape[3]))
        tape = recorder.tape
        found = None if tape is None else tape.noted()
        if found is not None:
            return mx.zeros(v.shape, q.dtype), found[0].state_after(found[1])
        rate = -mx.exp(log_rate.astype(mx.float32))
        decay = rate * nn.softplus(a + bias).astype(mx.float32)
        y, state, written = rule.run(q, k, v, decay, mx.sigmoid(b), state)
        if tape is not None:
            tape.note(written, state)
        return y, state

    return update


def _by_head(x: mx.array, copies: int = 1) -> mx.array:
    """[B, T, H, D] -> [B, H * copies, T, D] float32."""
    heads = x.astype(mx.float32).swapaxes(1, 2)
    return heads if copies == 1 else mx.repeat(heads, copies, axis=1)


def _between(total: mx.array) -> mx.array:
    """[B, H, T, T]: how much of what token s wrote is left after token t >= s; else 0."""
    num_tokens = total.shape[-1]
    apart = total[..., :, None] - total[..., None, :]
    earlier = mx.tri(num_tokens, dtype=mx.bool_)
    return mx.exp(mx.where(earlier, apart, -mx.inf))
