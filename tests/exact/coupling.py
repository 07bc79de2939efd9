"""The coupled law, whose text is a function of the noise: measured race by race, and run.

Two things make it exact. Whatever is drafted, the text is the one that the noise decides on without
a draft: that is run, for tables of noise. And a race is won by each token with its probability:
that is measured. With the noise of the winner as the unit, every other token has one threshold t
above which it loses, located by bisection of the production code; then
P(x wins) = integral of exp(-e) * prod exp(-t_y e) de = 1 / (1 + sum t_y).
"""

from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mtplx import coupled, verification
from mtplx.speculation import Draft, Uniforms
from tests.exact.enumeration import ALMOST_ONE, Bools, step_positions
from tests.exact.scene import Floats, JointLaw, Prefix, Scene, paths, plain_law

_FAR = 1e12  # noise of a token that takes no part
Pair = tuple[mx.array, mx.array]


def race_law(probs: Floats) -> Floats:
    """[B, V], how likely each token is to win the production race under probs [B, V]."""
    return _wins(_thresholds(probs))


def agreement_law(p: Floats, q: Floats) -> Floats:
    """[B, V], how likely each token is to win the same race under p and under q."""
    return _wins(np.maximum(_thresholds(p), _thresholds(q)))


def raced_law(scene: Scene) -> JointLaw:
    """The distribution over texts that the race decides on, token by token."""
    return plain_law(replace(scene, target=lambda e, d: race_law(scene.target(e, d))))


def mean_agreed(scene: Scene) -> float:
    """Drafted tokens that the first round accepts, from the measured races."""
    kept: dict[Prefix, float] = {}
    for path in paths(scene, ()):
        if path.draft:
            rows = agreement_law(scene.target((), path.draft)[:-1], np.array(path.q))
            both = np.take_along_axis(rows, np.array(path.draft)[:, None], axis=1)[:, 0]
            for i, probability in enumerate(np.cumprod(both).tolist()):
                kept[path.draft[: i + 1]] = probability
    return sum(kept.values())


def texts(scene: Scene, noise: Floats) -> tuple[list[Prefix], NDArray[np.int64]]:
    """The text that each table of noise gives, and the drafted tokens its first round accepted.

    noise: [L, T, V], of each position; T reaches beyond the text by the depth of a round.
    """
    emitted: list[Prefix] = [()] * len(noise)
    first = np.zeros(len(noise), dtype=np.int64)
    while going := [i for i, text in enumerate(emitted) if not scene.is_over(text)]:
        drafts = _drafts(scene, noise, emitted, going)
        for length in {len(draft) for draft in drafts.values()}:
            lanes = [i for i in going if len(drafts[i]) == length]
            counts, chosen = _verified(scene, noise, emitted, lanes, drafts)
            for i, count, ids in zip(lanes, counts.tolist(), chosen.tolist(), strict=True):
                if not emitted[i]:
                    first[i] = count
                emitted[i] = scene.cut(emitted[i], tuple(ids[: count + 1]))
    return emitted, first


def _drafts(
    scene: Scene, noise: Floats, emitted: Sequence[Prefix], going: Sequence[int]
) -> dict[int, Prefix]:
    """The draft of each lane that goes on: the race run on q."""
    drafts: dict[int, Prefix] = dict.fromkeys(going, ())
    growing = list(going)
    for step in range(max(scene.depth(emitted[i]) for i in going)):
        q = {i: scene.proposal(emitted[i], drafts[i]) for i in growing}
        growing = [i for i in growing if step < scene.depth(emitted[i])]
        if scene.stops_before is not None:
            growing = [i for i in growing if not scene.stops_before(q[i])]
        if not growing:
            break
        rows = np.stack([noise[i, len(emitted[i]) + step] for i in growing])
        winners = _race(np.stack([q[i] for i in growing]), rows)
        for i, x in zip(growing, winners.tolist(), strict=True):
            drafts[i] = (*drafts[i], x)
        if scene.stops_after is not None:
            growing = [i for i in growing if not scene.stops_after(q[i], drafts[i][-1])]
    return drafts


def _verified(
    scene: Scene,
    noise: Floats,
    emitted: Sequence[Prefix],
    lanes: Sequence[int],
    drafts: dict[int, Prefix],
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Accepted counts and chosen tokens of a round of lanes whose drafts are equally long."""
    num_rows = len(drafts[lanes[0]]) + 1
    p = np.stack([scene.target(emitted[i], drafts[i]) for i in lanes])
    rows = np.stack([noise[i, len(emitted[i]) :][:num_rows] for i in lanes])
    ids = np.array([drafts[i] for i in lanes], dtype=np.int32).reshape(len(lanes), num_rows - 1)

    def lane(p: mx.array, ids: mx.array, noise: mx.array) -> Pair:
        nothing = mx.zeros((0, 2))
        acceptance = verification.LAWS["coupled"](p, Draft(ids), Uniforms(nothing, nothing, noise))
        return acceptance.num_accepted, acceptance.token_ids

    # The noise itself stands where its keys would.
    with mx.stream(mx.cpu), patch.object(coupled, "exponentials", lambda noise, ids: noise):
        arrays = [mx.array(p, dtype=mx.float64), mx.array(ids), mx.array(rows, dtype=mx.float64)]
        counts, chosen = mx.vmap(lane)(*arrays)
        return np.array(counts), np.array(chosen)


def _thresholds(probs: Floats) -> Floats:
    """[B, V, V]: the noise of y above which x wins with noise 1; infinite where x never does."""
    num_rows, vocab_size = probs.shape
    x, y = (grid.ravel() for grid in np.mgrid[:vocab_size, :vocab_size])
    order = np.arange(vocab_size)

    def y_wins(u: Floats) -> Bools:
        noise = np.full((num_rows, len(x), vocab_size), _FAR)
        noise = np.where(order == y[:, None], (u / (1 - u))[..., None], noise)
        noise = np.where(order == x[:, None], 1.0, noise)
        tiled = np.broadcast_to(probs[:, None], noise.shape)
        return np.asarray(_race(tiled, noise) != x)

    with np.errstate(invalid="ignore"):
        guess = probs[:, y] / (probs[:, x] + probs[:, y])
    step = step_positions(y_wins, np.nan_to_num(guess), (x != y) & (probs[:, x] > 0))
    t = np.minimum(step, ALMOST_ONE) / (1 - np.minimum(step, ALMOST_ONE))
    t = np.where(x == y, 1.0, np.where(probs[:, x] > 0, t, np.inf))
    return t.reshape(num_rows, vocab_size, vocab_size)


def _wins(t: Floats) -> Floats:
    result: Floats = 1 / t.sum(axis=-1)
    return result


def _race(probs: Floats, noise: Floats) -> NDArray[np.int32]:
    with mx.stream(mx.cpu):
        return np.array(
            coupled.race(mx.array(probs, dtype=mx.float64), mx.array(noise, dtype=mx.float64))
        )
