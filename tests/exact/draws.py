"""Real draws through the production path, many lanes at once, and how to judge them."""

from collections.abc import Callable

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray
from scipy import stats

from mtplx import rng, sampling, verification
from mtplx.sampling import History, SamplingParams
from mtplx.speculation import Draft, Uniforms

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FALSE_ALARM = 1e-9


def assert_fits(observed: Ints, expected: Floats) -> None:
    """Pearson's chi-square of counts against expected counts, rare bins put together."""
    order = np.argsort(expected)
    rare = np.cumsum(expected[order]) < 10
    merged = order[: int(rare.sum()) + 1]
    others = np.setdiff1d(order, merged)
    seen = np.append(observed[others], observed[merged].sum())
    due = np.append(expected[others], expected[merged].sum())
    assert observed[expected == 0].sum() == 0, "something impossible was drawn"
    statistic = float(((seen - due) ** 2 / due).sum())
    p_value = float(stats.chi2.sf(statistic, max(1, len(due) - 1)))
    assert p_value > FALSE_ALARM, (
        f"chi-square {statistic:.1f} over {len(due)} bins, p {p_value:.1e}"
    )


def warped_table(vocab_size: int, seed: int, params: SamplingParams) -> mx.array:
    """[V, V], row x the production distribution after token x, float32."""
    logits = np.random.default_rng(seed).normal(scale=2, size=(vocab_size, vocab_size))
    history = History((), mx.zeros(vocab_size - 1, dtype=mx.int32))
    return sampling.warp(mx.array(logits.astype(np.float32)), params, history).probs


def verify_lanes(
    p: mx.array, token_ids: mx.array, q: mx.array | None, uniforms: Uniforms, law: str = "rejection"
) -> tuple[Ints, Ints]:
    """Accepted counts [L] and token ids [L, K + 1]; every argument has lanes in front."""

    def lane(p: mx.array, ids: mx.array, a: mx.array, c: mx.array, *q: mx.array) -> list[mx.array]:
        acceptance = verification.LAWS[law](p, Draft(ids, q[0] if q else None), Uniforms(a, c))
        return [acceptance.num_accepted, acceptance.token_ids]

    rest = [] if q is None else [q]
    counts, emitted = mx.vmap(lane)(p, token_ids, uniforms.accept, uniforms.choose, *rest)
    return np.array(counts).astype(np.int64), np.array(emitted).astype(np.int64)


def uniform_pairs(generator: np.random.Generator, *shape: int) -> mx.array:
    """float32 numbers on the grid that the runtime draws from."""
    return mx.array((generator.integers(0, 2**24, size=shape) / 2**24).astype(np.float32))


def one_round(
    p: mx.array, q: mx.array, num_draft: int, num_lanes: int, seed: int
) -> tuple[Ints, Ints]:
    """A first round after token 0, of a target and a drafter that look one token back.

    p, q: [V, V], a row for each last token. Returns accepted counts and token ids.
    """
    generator = np.random.default_rng(seed)
    drafted: list[mx.array] = []
    last = mx.zeros(num_lanes, dtype=mx.int32)
    lasts = [last]
    for _ in range(num_draft):
        last = sampling.draw(q[last], uniform_pairs(generator, num_lanes, 2))
        drafted.append(last)
        lasts.append(last)
    before = mx.stack(lasts, axis=1)  # [L, K + 1]
    uniforms = Uniforms(
        uniform_pairs(generator, num_lanes, num_draft),
        uniform_pairs(generator, num_lanes, num_draft + 1, 2),
    )
    return verify_lanes(p[before], mx.stack(drafted, axis=1), q[before[:, :-1]], uniforms)


def whole_texts(
    p: mx.array, q: mx.array, num_tokens: int, num_lanes: int, depth: Callable[[Ints], Ints]
) -> Ints:
    """[L, num_tokens], texts of one seed each, drawn with the runtime's own random numbers.

    depth: from what the last round drafted and threw away, [L, 2] with -1 for nothing, to the
    draft tokens of the next round, 0 to 2, of each lane.
    """
    texts = np.zeros((num_lanes, num_tokens + 4), dtype=np.int64)
    lengths = np.zeros(num_lanes, dtype=np.int64)
    discarded = np.full((num_lanes, 2), -1)
    while np.any(lengths < num_tokens):
        depths = depth(discarded)
        discarded = np.full((num_lanes, 2), -1)
        for num_draft in range(3):
            lanes = np.flatnonzero((lengths < num_tokens) & (depths == num_draft))
            if not lanes.size:
                continue
            last = np.where(lengths[lanes] > 0, texts[lanes, lengths[lanes] - 1], 0)
            drafts, counts, emitted = _keyed_round(p, q, lanes, lengths[lanes], last, num_draft)
            columns = lengths[lanes, None] + np.arange(num_draft + 1)
            texts[lanes[:, None], columns] = emitted  # what is behind the count is overwritten
            unused = np.arange(num_draft) > counts[:, None]
            discarded[lanes, :num_draft] = np.where(unused, drafts, -1)
            lengths[lanes] += counts + 1
    return texts[:, :num_tokens]


def _keyed_round(
    p: mx.array, q: mx.array, seeds: Ints, positions: Ints, last: Ints, num_draft: int
) -> tuple[Ints, Ints, Ints]:
    keys = [(int(seed), int(position)) for seed, position in zip(seeds, positions, strict=True)]
    before = [mx.array(last.astype(np.int32))]
    for step in range(num_draft):
        numbers = mx.stack([rng.draft_uniforms(*key, step) for key in keys])
        before.append(sampling.draw(q[before[-1]], numbers))
    rounds = [rng.round_uniforms(*key, num_draft) for key in keys]
    uniforms = Uniforms(mx.stack([r.accept for r in rounds]), mx.stack([r.choose for r in rounds]))
    histories = mx.stack(before, axis=1)  # [L, K + 1]
    drafts = histories[:, 1:]
    counts, emitted = verify_lanes(p[histories], drafts, q[histories[:, :-1]], uniforms)
    return np.array(drafts).astype(np.int64), counts, emitted
