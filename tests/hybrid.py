"""A random hybrid trunk, small enough to enumerate: one gated-delta layer, one attention layer.

The recurrent layer follows Gated DeltaNet (Yang et al., arXiv 2412.06464) on a short causal
convolution. It undoes by tape: what each token put into the recurrence is kept, and a prefix is
folded again.
"""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from mtplx.cache import AttentionCache
from mtplx.errors import RollbackError
from mtplx.models.drafter import HeadDrafter
from mtplx.models.head import HeadWeights, LlamaHead
from mtplx.models.llama import LlamaBlock, LlamaDims, rows_after, run_block
from mtplx.models.matrix import DenseMatrix
from mtplx.speculation import LayerCache, Snapshot
from tests.tiny import random_block, random_matrix, random_vector, tiny_head, whole_vocabulary

NUM_HEADS, WIDTH, TAPS = 2, 4, 3
CHANNELS = 3 * NUM_HEADS * WIDTH  # q, k and v of every head
HYBRID = LlamaDims(
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    mlp_size=16,
    vocab_size=8,
    context_length=64,
    rope_base=10_000.0,
    norm_eps=1e-5,
)


@dataclass(frozen=True, slots=True)
class DeltaBlock:
    """Weights of the recurrent layer."""

    norm: mx.array  # [D]
    qkv: DenseMatrix  # [CHANNELS, D]
    gates: DenseMatrix  # [2 H, D]: what decays, what is written
    taps: mx.array  # [TAPS, CHANNELS]
    output: DenseMatrix  # [D, H * WIDTH]


@dataclass(frozen=True, slots=True)
class Tape:
    """What T tokens put into the layer: convolution inputs and gates."""

    qkv: mx.array  # [T, CHANNELS], before the convolution
    gates: mx.array  # [T, 2 H]

    def first(self, num_tokens: int) -> "Tape":
        return Tape(self.qkv[:num_tokens], self.gates[:num_tokens])

    def after(self, before: "Tape") -> "Tape":
        return Tape(
            mx.concatenate([before.qkv, self.qkv]), mx.concatenate([before.gates, self.gates])
        )


@dataclass(frozen=True, slots=True)
class Memory:
    """The recurrent state after some tokens, and the convolution inputs that still reach ahead."""

    state: mx.array  # [H, WIDTH, WIDTH]
    window: mx.array  # [TAPS - 1, CHANNELS]


def blank() -> Memory:
    return Memory(mx.zeros((NUM_HEADS, WIDTH, WIDTH)), mx.zeros((TAPS - 1, CHANNELS)))


def fold(memory: Memory, tape: Tape, taps: mx.array) -> tuple[Memory, mx.array]:
    """The memory after the tokens of a tape, and the outputs [T, H * WIDTH], one at a time.

    One at a time, so that a token's bits do not depend on the pass it came in.
    """
    state, rows, outputs = memory.state, mx.concatenate([memory.window, tape.qkv]), []
    for t in range(tape.qkv.shape[0]):
        mixed = mx.sum(rows[t : t + TAPS] * taps, axis=0)
        q, k, v = (mixed * mx.sigmoid(mixed)).reshape(3, NUM_HEADS, WIDTH)
        k = k / mx.sqrt(mx.sum(k * k, axis=-1, keepdims=True) + 1e-6)
        decay, write = mx.sigmoid(tape.gates[t].reshape(2, NUM_HEADS, 1))
        state = state * decay[..., None]
        found = mx.sum(state * k[..., None], axis=-2)  # what the state answers to this key
        state = state + k[..., None] * (write * (v - found))[:, None]
        outputs.append(mx.sum(state * q[..., None], axis=-2).reshape(-1))
    return Memory(state, rows[rows.shape[0] - (TAPS - 1) :]), mx.stack(outputs)


class DeltaCache:
    """The memory of the recurrent layer, with a tape of everything since the beginning."""

    name = "delta"
    keeps_every_length = True
    num_replays = 0

    def __init__(self, taps: mx.array) -> None:
        self.taps = taps
        self.memory = blank()
        self.tape = Tape(mx.zeros((0, CHANNELS)), mx.zeros((0, 2 * NUM_HEADS)))
        self._before, self._last_pass = blank(), 0

    @property
    def offset(self) -> int:
        return int(self.tape.qkv.shape[0])

    def append(self, tape: Tape) -> mx.array:
        """The outputs [T, H * WIDTH] of the tokens of one pass."""
        self._before, self._last_pass = self.memory, int(tape.qkv.shape[0])
        self.memory, outputs = fold(self.memory, tape, self.taps)
        self.tape = tape.after(self.tape)
        return outputs

    def check(self, start: int, num_rows: int) -> None:
        if (self.offset, self._last_pass) != (start + num_rows, num_rows):
            raise RollbackError(f"{self.name}: {num_rows} tokens after {start} are not recorded.")

    def keep(self, num_tokens: int) -> None:
        if not 0 <= num_tokens <= self._last_pass:
            raise RollbackError(
                f"{self.name}: asked to keep {num_tokens} tokens of a pass of {self._last_pass}."
            )
        start = self.offset - self._last_pass
        tape = self.tape.first(start + num_tokens)
        self.memory = self._refolded(self._before, tape, start)
        self.tape, self._last_pass = tape, 0

    def reaches(self, length: int) -> bool:
        return 0 <= length <= self.offset

    def rewind(self, length: int) -> None:
        if not self.reaches(length):
            raise RollbackError(f"{self.name}: cannot go back to {length} of {self.offset} tokens.")
        self.tape = self.tape.first(length)
        self.memory, self._last_pass = self._refolded(blank(), self.tape, 0), 0

    def snapshot(self, *, whole: bool = False) -> Snapshot:
        tape = (self.tape.qkv, self.tape.gates) if whole else ()
        return Snapshot((self.offset,), tape)

    def restore(self, snapshot: Snapshot) -> None:
        if snapshot.arrays:
            self.tape = Tape(*snapshot.arrays)
        self.rewind(snapshot.numbers[0])

    def _refolded(self, memory: Memory, tape: Tape, start: int) -> Memory:
        rest = Tape(tape.qkv[start:], tape.gates[start:])
        return fold(memory, rest, self.taps)[0] if rest.qkv.shape[0] else memory

    @property
    def state(self) -> list[mx.array]:
        return [self.memory.state, self.memory.window, self.tape.qkv, self.tape.gates]

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in self.state)


@dataclass(frozen=True, slots=True)
class HybridTarget:
    """The trunk as the decode loop sees it (speculation.Target)."""

    dims: LlamaDims
    embedding: DenseMatrix
    delta: DeltaBlock
    attention: LlamaBlock
    final_norm: mx.array
    lm_head: DenseMatrix

    @property
    def vocab_size(self) -> int:
        return self.dims.vocab_size

    @property
    def context_length(self) -> int:
        return self.dims.context_length

    def make_cache(self) -> list[LayerCache]:
        return [DeltaCache(self.delta.taps), AttentionCache()]

    def forward(self, token_ids: mx.array, cache: list[LayerCache]) -> mx.array:
        recurrent, attended = cache
        assert isinstance(recurrent, DeltaCache)
        assert isinstance(attended, AttentionCache)
        x = self.embedding.rows(token_ids)
        normed = mx.fast.rms_norm(x, self.delta.norm, self.dims.norm_eps)
        tape = Tape(self.delta.qkv(normed), self.delta.gates(normed))
        x = x + self.delta.output(recurrent.append(tape))
        rows = rows_after(self.dims, attended.offset, token_ids.shape[0])
        return run_block(self.dims, self.attention, x[None], rows, attended)[0]

    def normalise(self, hidden: mx.array) -> mx.array:
        return mx.fast.rms_norm(hidden, self.final_norm, self.dims.norm_eps)

    def logits(self, hidden: mx.array) -> mx.array:
        return self.lm_head(hidden)


def hybrid_target(seed: int = 0) -> HybridTarget:
    """Random weights under which the state matters: recent and older tokens move the logits."""
    rng = np.random.default_rng([seed, 3])
    width = HYBRID.hidden_size
    delta = DeltaBlock(
        norm=random_vector(rng, width),
        qkv=random_matrix(rng, CHANNELS, width),
        gates=random_matrix(rng, 2 * NUM_HEADS, width),
        taps=mx.array(rng.normal(size=(TAPS, CHANNELS)).astype(np.float32)),
        output=random_matrix(rng, width, NUM_HEADS * WIDTH),
    )
    target = HybridTarget(
        dims=HYBRID,
        embedding=random_matrix(rng, HYBRID.vocab_size, width),
        delta=delta,
        attention=random_block(rng, HYBRID),
        final_norm=random_vector(rng, width),
        lm_head=random_matrix(rng, HYBRID.vocab_size, width),
    )
    mx.eval(delta.taps, target.final_norm, target.logits(target.final_norm[None]))
    return target


def hybrid_drafter(target: HybridTarget, head: HeadWeights | None = None) -> HeadDrafter:
    """An MTP head on the hybrid, drafting from its whole vocabulary."""
    shared = whole_vocabulary(target)  # type: ignore[arg-type]  # all that is asked is there
    llama_head = LlamaHead(target, head or tiny_head(dims=HYBRID))
    return HeadDrafter(llama_head, shared)
