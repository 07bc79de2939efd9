"""Real draws through the production path, many lanes at once, and how to judge them."""

from collections.abc import Callable
from unittest.mock import patch

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray
from scipy import stats

from mtplx import coupled, rng, sampling, verification
from mtplx.sampling import History, SamplingParams
from mtplx.speculation import Draft, Uniforms
from tests.exact.closed_forms import acceptance_and_weights, agreement

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


def as_distribution(table: mx.array) -> Floats:
    """Rows [..., V] in float64, summing to 1 beyond what float32 can do."""
    rows = np.array(table).astype(np.float64)
    normalised: Floats = rows / rows.sum(axis=-1, keepdims=True)
    return normalised


def verify_lanes(
    law: str,
    p: mx.array,
    token_ids: mx.array,
    q: mx.array | None,
    uniforms: Uniforms,
    *,
    shared: bool = False,
) -> tuple[Ints, Ints]:
    """Accepted counts [L] and token ids [L, K + 1]; every argument has lanes in front.

    shared: p and q have none, being the same for all lanes.
    """
    parts = [token_ids, uniforms.accept, uniforms.choose]
    if uniforms.noise is not None:
        # Made before: under vmap MLX 0.32 gets a ^ b wrong where b alone has lanes.
        parts.append(coupled.exponentials(uniforms.noise, mx.arange(p.shape[-1])))

    def lane(ids: mx.array, *rest: mx.array) -> list[mx.array]:
        numbers, (rows, *proposed) = rest[: len(parts) - 1], rest[len(parts) - 1 :]
        draft = Draft(ids, proposed[0] if proposed else None)
        acceptance = verification.LAWS[law](rows, draft, Uniforms(*numbers))
        return [acceptance.num_accepted, acceptance.token_ids]

    rows = [p] if q is None else [p, q]
    axes = (0,) * len(parts) + (None if shared else 0,) * len(rows)
    with patch.object(coupled, "exponentials", lambda noise, ids: noise):
        counts, emitted = mx.vmap(lane, in_axes=axes)(*parts, *rows)
    return np.array(counts).astype(np.int64), np.array(emitted).astype(np.int64)


def uniform_pairs(generator: np.random.Generator, *shape: int) -> mx.array:
    """float32 numbers on the grid that the runtime draws from."""
    return mx.array((generator.integers(0, 2**24, size=shape) / 2**24).astype(np.float32))


def noise_keys(generator: np.random.Generator, *shape: int) -> mx.array:
    """[..., 2] uint32, keys of noise as a decode has them."""
    return mx.array(generator.integers(0, 2**32, size=(*shape, 2), dtype=np.uint32))


def one_round(
    law: str, p: mx.array, q: mx.array, num_draft: int, num_lanes: int, seed: int
) -> tuple[Ints, Ints]:
    """A first round after token 0, of a target and a drafter that look one token back.

    p, q: [V, V], a row for each last token. Returns accepted counts and the first two tokens of
    the text, [L, 2], the second one decoded plainly where the round gave but one.
    """
    generator = np.random.default_rng(seed)
    keys = noise_keys(generator, num_lanes, num_draft + 1)
    lasts = [mx.zeros(num_lanes, dtype=mx.int32)]
    for step in range(num_draft):
        rows = q[lasts[-1]]
        if law == "coupled":
            noise = coupled.exponentials(keys[:, step], mx.arange(q.shape[-1]))
            lasts.append(coupled.race(rows, noise))
        else:
            lasts.append(sampling.draw(rows, uniform_pairs(generator, num_lanes, 2)))
    before = mx.stack(lasts, axis=1)  # [L, K + 1]
    uniforms = Uniforms(
        uniform_pairs(generator, num_lanes, num_draft),
        uniform_pairs(generator, num_lanes, num_draft + 1, 2),
        keys,
    )
    proposed = None if law == "coupled" else q[before[:, :-1]]
    counts, tokens = verify_lanes(law, p[before], before[:, 1:], proposed, uniforms)
    rows = p[mx.array(tokens[:, 0].astype(np.int32))]
    if law == "coupled":
        plain = coupled.race(rows, coupled.exponentials(keys[:, 1], mx.arange(p.shape[-1])))
    else:
        plain = sampling.draw(rows, uniform_pairs(generator, num_lanes, 2))
    tokens[:, 1] = np.where(counts > 0, tokens[:, 1], np.array(plain))
    return counts, tokens[:, :2]


def count_law(law: str, p: Floats, q: Floats, num_draft: int) -> Floats:
    """[K + 1], how likely a round of `one_round` is to accept 0, ..., K tokens: the closed form."""
    vocab_size = len(p)
    drafts = np.array(list(np.ndindex(*[vocab_size] * num_draft)), dtype=np.int32)
    before = np.concatenate([np.zeros_like(drafts[:, :1]), drafts], axis=1)  # [B, K + 1]
    drawn = np.take_along_axis(q[before[:, :-1]], drafts[..., None], axis=-1)[..., 0]
    weights = drawn.prod(axis=1)
    if law == "coupled":
        both = np.stack([agreement(p[x], q[x]) for x in range(vocab_size)])
        reached = [both[before[:, i], drafts[:, i]] for i in range(num_draft)]
        kept = np.cumprod(np.stack([np.ones(len(drafts)), *reached], axis=1), axis=1)
        others = np.array([vocab_size ** (num_draft - n) for n in range(num_draft + 1)])
        survival = kept.sum(axis=0) / others  # a kept prefix stands once for every rest of a draft
        return np.asarray(-np.diff(survival, append=0))
    accept, _ = acceptance_and_weights(law, p[before], drafts, q[before[:, :-1]])
    return np.asarray(weights @ count_given(law, accept))


def count_given(law: str, accept: Floats) -> Floats:
    """[B, K + 1], how likely each count is when test i passes with probability accept [B, K]."""
    one = np.ones((len(accept), 1))
    if law == "rejection":
        reached = np.concatenate([one, np.cumprod(accept, axis=1)], axis=1)
        return np.asarray(-np.diff(reached, axis=1, append=0))
    failing = np.cumprod(np.concatenate([one, 1 - accept[:, ::-1]], axis=1), axis=1)[:, ::-1]
    return np.concatenate([one, accept], axis=1) * failing


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
    counts, emitted = verify_lanes("block", p[histories], drafts, q[histories[:, :-1]], uniforms)
    return np.array(drafts).astype(np.int64), counts, emitted
