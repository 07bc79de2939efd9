"""Random models that decode in milliseconds, and a drafter whose drafts follow a script."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import cast

import mlx.core as mx
import numpy as np

from mtplx.blas import serving
from mtplx.cache import AttentionCache
from mtplx.decode import Emission, decode
from mtplx.depth import Ask, DepthPolicy, FixedDepth, Plan, fixed_depth
from mtplx.draft_options import DraftOptions
from mtplx.lookup import Continuation
from mtplx.models.drafter import Head, HeadDrafter
from mtplx.models.head import HeadWeights, LlamaHead
from mtplx.models.llama import LlamaBlock, LlamaDims, LlamaTarget
from mtplx.models.matrix import DenseMatrix
from mtplx.models.shortlist import Shortlist, make_shortlist
from mtplx.params import SamplingParams
from mtplx.speculation import Draft, DraftInput, DrawDraft, LayerCache, Target
from mtplx.state import DecodeState
from mtplx.stats import DecodeStats

DIMS = LlamaDims(
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    mlp_size=48,
    vocab_size=64,
    context_length=2048,
    rope_base=10_000.0,
    norm_eps=1e-5,
)
GREEDY = SamplingParams(temperature=0.0, max_tokens=14)
HEAD_ALONE = DraftOptions(stop=0, lookup=False)


def random_matrix(rng: np.random.Generator, rows: int, columns: int) -> DenseMatrix:
    weight = rng.normal(size=(rows, columns)) * (1.5 / columns**0.5)
    return DenseMatrix(mx.array(weight.astype(np.float32)))


def random_vector(rng: np.random.Generator, size: int) -> mx.array:
    return mx.array(rng.uniform(0.5, 1.5, size).astype(np.float32))


def random_block(rng: np.random.Generator, dims: LlamaDims) -> LlamaBlock:
    width, q_rows = dims.hidden_size, dims.num_heads * dims.head_dim
    kv_rows = dims.num_kv_heads * dims.head_dim
    return LlamaBlock(
        attention_norm=random_vector(rng, width),
        qkv=random_matrix(rng, q_rows + 2 * kv_rows, width),
        output=random_matrix(rng, width, q_rows),
        mlp_norm=random_vector(rng, width),
        gate_up=random_matrix(rng, 2 * dims.mlp_size, width),
        down=random_matrix(rng, width, dims.mlp_size),
    )


def tiny_target(seed: int = 0, dims: LlamaDims = DIMS) -> LlamaTarget:
    """A llama-type trunk with random dense weights."""
    rng = np.random.default_rng([seed, 1])
    blocks = tuple(random_block(rng, dims) for _ in range(dims.num_layers))
    target = LlamaTarget(
        dims=dims,
        embedding=random_matrix(rng, dims.vocab_size, dims.hidden_size),
        blocks=blocks,
        final_norm=random_vector(rng, dims.hidden_size),
        lm_head=random_matrix(rng, dims.vocab_size, dims.hidden_size),
    )
    mx.eval(target.arrays())
    return target


def tiny_head(seed: int = 0, dims: LlamaDims = DIMS, num_blocks: int = 1) -> HeadWeights:
    """A random MTP head for a trunk of these sizes."""
    rng = np.random.default_rng([seed, 2])
    head = HeadWeights(
        enorm=random_vector(rng, dims.hidden_size),
        hnorm=random_vector(rng, dims.hidden_size),
        eh_proj=random_matrix(rng, dims.hidden_size, 2 * dims.hidden_size),
        blocks=tuple(random_block(rng, dims) for _ in range(num_blocks)),
        norm=random_vector(rng, dims.hidden_size),
    )
    mx.eval(head.arrays())
    return head


def scaled_block(block: LlamaBlock, factor: float) -> LlamaBlock:
    """The block with every weight multiplied."""
    return LlamaBlock(
        attention_norm=block.attention_norm * factor,
        qkv=DenseMatrix(block.qkv.arrays()[0] * factor),
        output=DenseMatrix(block.output.arrays()[0] * factor),
        mlp_norm=block.mlp_norm * factor,
        gate_up=DenseMatrix(block.gate_up.arrays()[0] * factor),
        down=DenseMatrix(block.down.arrays()[0] * factor),
    )


def scaled_head(head: HeadWeights, factor: float) -> HeadWeights:
    """The head with every weight multiplied: 0 makes it say nothing, NaN makes it broken."""
    return HeadWeights(
        enorm=head.enorm * factor,
        hnorm=head.hnorm * factor,
        eh_proj=DenseMatrix(head.eh_proj.arrays()[0] * factor),
        blocks=tuple(scaled_block(block, factor) for block in head.blocks),
        norm=head.norm * factor,
    )


def whole_vocabulary(target: LlamaTarget) -> Shortlist:
    """Every token in order, so that a column is a token id."""
    return make_shortlist(target.lm_head, mx.arange(target.vocab_size, dtype=mx.int32))


def head_drafter(target: LlamaTarget, head: HeadWeights | None = None) -> HeadDrafter:
    return HeadDrafter(
        LlamaHead(target, head or tiny_head(dims=target.dims)), whole_vocabulary(target)
    )


class ScriptedDrafter(HeadDrafter):
    """A head that runs as ever, but whose drafts follow `text`, prompt included, up to a slip.

    slip_at(position) says which token of the draft that starts at this absolute position is wrong;
    one beyond its end is none. The head's own state moves as if it had drafted these tokens.
    """

    def __init__(
        self,
        target: Target,
        text: Sequence[int],
        slip_at: Callable[[int], int],
        head: Head | None = None,
    ) -> None:
        """head: a random one for a llama-type trunk where none is given."""
        if head is None:
            assert isinstance(target, LlamaTarget)
            head = LlamaHead(target, tiny_head(dims=target.dims))
        super().__init__(head)
        self.text, self.slip_at, self.vocab_size = list(text), slip_at, target.vocab_size

    def propose(self, rows: DraftInput, num_tokens: int, draw: DrawDraft) -> Draft:
        start = self.num_rows + len(rows.token_ids.tolist()) + 1  # type: ignore[arg-type]
        script = [*self.text[start:], *[0] * num_tokens][:num_tokens]
        slip = self.slip_at(start)
        if slip < num_tokens:
            script[slip] = (script[slip] + 1) % self.vocab_size

        def follow(logits: mx.array, step: int) -> tuple[mx.array, None]:
            return mx.array([script[step]], dtype=mx.int32), None

        return super().propose(rows, num_tokens, follow)


@dataclass(slots=True)
class WatchedTarget:
    """A target that counts its passes and lets a test step in before and after each of them."""

    inner: LlamaTarget
    before: Callable[[int], None] = lambda index: None
    after: Callable[[int, mx.array], mx.array] = lambda index, hidden: hidden
    num_passes: int = 0

    @property
    def vocab_size(self) -> int:
        return self.inner.vocab_size

    @property
    def context_length(self) -> int:
        return self.inner.context_length

    def make_cache(self) -> list[LayerCache]:
        return self.inner.make_cache()

    def forward(self, token_ids: mx.array, cache: list[LayerCache]) -> mx.array:
        index, self.num_passes = self.num_passes, self.num_passes + 1
        self.before(index)
        return self.after(index, self.inner.forward(token_ids, cache))

    def normalise(self, hidden: mx.array) -> mx.array:
        return self.inner.normalise(hidden)

    def logits(self, hidden: mx.array) -> mx.array:
        return self.inner.logits(hidden)


class ChosenDepth(FixedDepth):
    """Drafts as many tokens of the head as a function of the number of tokens before says."""

    def __init__(self, choose: Callable[[int], int]) -> None:
        super().__init__(DIMS.context_length)
        self.choose = choose

    def plan(self, ask: Ask) -> Plan:
        return Plan(min(max(self.choose(ask.context), 0), ask.most))

    def plan_ahead(self, context: int, found: Continuation) -> Plan | None:
        return Plan() if self.choose(context) <= 0 else None


def start(
    state: DecodeState,
    prompt: Sequence[int],
    params: SamplingParams = GREEDY,
    *,
    depth: int | DepthPolicy = 0,
    seed: int = 0,
    drafting: bool = True,
    stop_ids: Sequence[int] = (),
    stats: DecodeStats | None = None,
    draft: DraftOptions = HEAD_ALONE,
) -> Generator[Emission, None, None]:
    """A decode that has not begun."""
    rounds = decode(
        state,
        prompt,
        params,
        seed=seed,
        depth=fixed_depth(depth) if isinstance(depth, int) else depth,
        drafting=drafting,
        stop_ids=frozenset(stop_ids),
        stats=stats if stats is not None else DecodeStats(),
        draft=draft,
    )
    return cast("Generator[Emission, None, None]", rounds)


def finish(rounds: Generator[Emission, None, None]) -> list[int]:
    """The tokens of all of a decode's rounds."""
    return [token_id for emission in rounds for token_id in emission.token_ids]


def plain(
    target: Target,
    prompt: Sequence[int],
    params: SamplingParams = GREEDY,
    *,
    seed: int = 0,
    stop_ids: Sequence[int] = (),
) -> list[int]:
    """What the target says without a drafter, from nothing."""
    return finish(start(DecodeState(target), prompt, params, seed=seed, stop_ids=stop_ids))


def random_prompt(length: int, seed: int = 0, vocab_size: int = DIMS.vocab_size) -> list[int]:
    rng = np.random.default_rng([seed, length])
    return [int(x) for x in rng.integers(vocab_size, size=length)]


def same(one: mx.array, other: mx.array, *, bound: float = 2e-5) -> bool:
    """Equal bit for bit with MLX's own BLAS, else up to `bound` of the largest entry.

    Other libraries add up in another order for another number of rows.
    """
    if serving().name == "mlx":
        return one.shape == other.shape and bool(mx.array_equal(one, other).item())
    return close(one, other, bound=bound)


def close(one: mx.array, other: mx.array, *, bound: float = 2e-5) -> bool:
    """Equal up to `bound` of the largest entry: the same sums, made of other operations."""
    if one.shape != other.shape:
        return False
    worst = mx.max(mx.abs(one - other)) if one.size else mx.array(0.0)
    scale = mx.max(mx.abs(other)) if one.size else mx.array(1.0)
    return bool((worst <= bound * mx.maximum(scale, 1.0)).item())  # NaN is not


def held_rows(layers: Sequence[LayerCache], num_rows: int) -> list[mx.array]:
    """The first `num_rows` keys and values of every layer."""
    return [array[..., :num_rows, :] for layer in layers for array in layer.state if num_rows]


def assert_holds(state: DecodeState, token_ids: Sequence[int]) -> None:
    """The state is what a prefill of exactly these tokens gives, in the head's caches as well."""
    assert state.token_ids == list(token_ids)
    head = state.drafter
    fresh = DecodeState(state.target, None)
    if isinstance(head, HeadDrafter):
        fresh.drafter = HeadDrafter(head.head, head.shortlist)
    fresh.begin([*token_ids, 0], drafting=True)
    assert [layer.offset for layer in state.cache] == [len(token_ids)] * len(state.cache)
    rows = [(state.cache, fresh.cache, len(token_ids))]
    if isinstance(head, HeadDrafter) and isinstance(fresh.drafter, HeadDrafter):
        assert head.num_rows <= fresh.drafter.num_rows
        assert [layer.offset for layer in head.cache] == [head.num_rows] * len(head.cache)
        rows.append((head.cache, fresh.drafter.cache, head.num_rows))
    for held, expected, num_rows in rows:
        pairs = zip(held_rows(held, num_rows), held_rows(expected, num_rows), strict=True)
        assert all(same(a, b) for a, b in pairs)


def poison(layers: Sequence[LayerCache]) -> None:
    """Make every row that a cache does not hold NaN, so that reading one shows."""
    for layer in layers:
        assert isinstance(layer, AttentionCache)
        if layer.keys is not None and layer.values is not None:
            layer.keys[..., layer.offset :, :] = mx.nan
            layer.values[..., layer.offset :, :] = mx.nan
