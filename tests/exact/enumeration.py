"""The joint law of emitted tokens, measured from the production law in float64.

Nothing is sampled. For a given draft a law is a step function of its uniform numbers, so the
probability of each of its outcomes is a difference of the places where it steps, and those are
found by bisection of the production code itself. The outcomes of all drafts of all rounds are then
added up to the distribution over whole texts.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from unittest.mock import patch

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mtplx import sampling, verification
from mtplx.speculation import Draft, Uniforms

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Prefix = tuple[int, ...]
Tree = Callable[[Prefix], Floats]
JointLaw = dict[Prefix, float]
Pair = tuple[mx.array, mx.array]

ALMOST_ONE = 1 - 2.0**-53


@dataclass(frozen=True, slots=True)
class Scene:
    """A target, a drafter and a stopping rule, small enough to enumerate.

    target: (emitted, draft) -> [K + 1, V], the rows of a verify pass over the draft.
    proposal: (emitted, draft so far) -> [V], what the next draft token is drawn from.
    one_hot: the drafter hands over no probabilities, because its proposals are one-hot.
    support: the ids that proposals are handed over for; None is all.
    depth: how many tokens the round after these emitted ones drafts.
    handed_over: the q that the drafter hands over if it is not the one it draws from.
    """

    target: Callable[[Prefix, Prefix], Floats]
    proposal: Callable[[Prefix, Prefix], Floats]
    depth: Callable[[Prefix], int]
    one_hot: bool = False
    support: tuple[int, ...] | None = None
    handed_over: Callable[[Prefix, Prefix], Floats] | None = None
    stop_id: int | None = None
    max_tokens: int = 4
    law: str = "rejection"

    def is_over(self, emitted: Prefix) -> bool:
        stopped = self.stop_id is not None and self.stop_id in emitted
        return stopped or len(emitted) >= self.max_tokens

    def cut(self, emitted: Prefix, fresh: Prefix) -> Prefix:
        """The text after a round, cut at the first stop token and at the number of tokens."""
        for token_id in fresh:
            if self.is_over(emitted):
                break
            emitted = (*emitted, token_id)
        return emitted


@dataclass(frozen=True, slots=True)
class _Path:
    """One draft that can come about in a round, and how likely it is."""

    emitted: Prefix
    draft: Prefix
    probability: float
    q: tuple[Floats, ...]


def random_tree(vocab_size: int, seed: int, share_of_zeros: float = 0.0) -> Tree:
    """A distribution for every prefix, unrelated from one prefix to the next."""

    def distribution(prefix: Prefix) -> Floats:
        rng = np.random.default_rng([seed, len(prefix), *prefix])
        weights = rng.dirichlet(np.full(vocab_size, 0.8))
        weights[rng.permutation(vocab_size)[1:]] *= rng.random(vocab_size - 1) >= share_of_zeros
        return normalised(weights)

    return distribution


def normalised(weights: Floats) -> Floats:
    """Weights [..., V] scaled to sum to 1."""
    scaled: Floats = weights / weights.sum(axis=-1, keepdims=True)
    return scaled


def tree_rows(tree: Tree) -> Callable[[Prefix, Prefix], Floats]:
    """The rows of a verify pass over a draft, read off a tree."""
    return lambda emitted, draft: np.stack(
        [tree(emitted + draft[:i]) for i in range(len(draft) + 1)]
    )


def plain_law(scene: Scene) -> JointLaw:
    """The distribution over texts of drawing from the target one token at a time."""
    finished: JointLaw = {}
    open_texts: JointLaw = {(): 1.0}
    while open_texts:
        longer: JointLaw = {}
        for emitted, probability in open_texts.items():
            if scene.is_over(emitted):
                finished[emitted] = probability
                continue
            for token_id, p in enumerate(scene.target(emitted, ())[0].tolist()):
                longer[(*emitted, token_id)] = probability * p
        open_texts = longer
    return finished


def drafted_law(scene: Scene) -> JointLaw:
    """The distribution over texts of rounds of drafting and verifying."""
    reached: JointLaw = defaultdict(float, {(): 1.0})
    for length in range(scene.max_tokens):
        paths = [
            path
            for emitted, probability in list(reached.items())
            if len(emitted) == length and not scene.is_over(emitted)
            for path in _paths(scene, emitted, probability)
        ]
        for path, law in _with_laws(scene, paths):
            for num_accepted, token_id in np.ndindex(*law.shape):
                fresh = (*path.draft[:num_accepted], token_id)
                text = scene.cut(path.emitted, fresh)
                reached[text] += path.probability * float(law[num_accepted, token_id])
    return {text: p for text, p in reached.items() if scene.is_over(text)}


def total_variation(one: JointLaw, other: JointLaw) -> float:
    """Half the summed absolute difference of two distributions over texts."""
    return sum(abs(one.get(t, 0) - other.get(t, 0)) for t in one.keys() | other.keys()) / 2


def accepted_histogram(scene: Scene) -> Floats:
    """[K + 1], how likely the first round is to accept 0, 1, ..., K tokens."""
    histogram = np.zeros(scene.depth(()) + 1)
    for path, law in _with_laws(scene, list(_paths(scene, (), 1.0))):
        histogram += path.probability * law.sum(axis=1)
    return histogram


def expected_accepted(scene: Scene) -> float:
    """The closed form: over i, the sum over x_1..x_i of the product of min(p_j, q_j)."""
    total = 0.0
    weights: JointLaw = {(): 1.0}
    for _ in range(scene.depth(())):
        longer: JointLaw = {}
        for draft, weight in weights.items():
            both = np.minimum(scene.target((), draft)[-1], scene.proposal((), draft))
            longer.update({(*draft, int(x)): weight * both[x] for x in np.flatnonzero(both)})
        weights = longer
        total += sum(weights.values())
    return total


def measured_law(scene: Scene, paths: list[_Path]) -> Floats:
    """[B, K + 1, V], how likely it is that n tokens of a draft are kept and x follows them."""
    p = np.stack([scene.target(path.emitted, path.draft) for path in paths])
    num_paths, num_rows, vocab_size = p.shape
    drafts = np.array([path.draft for path in paths], dtype=np.int32).reshape(num_paths, -1)
    q = None
    if drafts.size and not scene.one_hot:
        columns = list(range(vocab_size) if scene.support is None else scene.support)
        q = np.array([path.q for path in paths])[:, :, columns]

    steps = _steps_of(scene, p, drafts, q).reshape(num_paths, -1)  # [B, K + (K + 1) (V - 1)]
    kept, below = np.hsplit(steps, [num_rows - 1])
    ones, zeros = np.ones((num_paths, 1)), np.zeros((num_paths, 1))
    ends_here = 1 - np.hstack([kept, zeros])
    reached = np.cumprod(np.hstack([ones, kept]), axis=1)
    below = below.reshape(num_paths, num_rows, vocab_size - 1)
    edges = np.concatenate([np.zeros_like(p[..., :1]), below, np.ones_like(p[..., :1])], axis=-1)
    law: Floats = (reached * ends_here)[..., None] * np.diff(edges)
    return law


def _steps_of(scene: Scene, p: Floats, drafts: NDArray[np.int32], q: Floats | None) -> Floats:
    """Where the outcomes change over, for every path the following lanes.

    K lanes: up to which accept number i draft token i is kept, those before it being kept.
    (K + 1) (V - 1) lanes: up to which choose number the token after n kept ones is at most x.
    """
    num_paths, num_rows, vocab_size = p.shape
    num_draft = num_rows - 1
    n, x = (grid.ravel() for grid in np.mgrid[:num_rows, : vocab_size - 1])
    order = np.arange(num_draft)
    accepting = np.arange(num_draft + len(n)) < num_draft
    position = np.concatenate([order, n])
    sweeps = accepting[:, None] & (order == position[:, None])  # accept numbers that are varied
    fixed = np.where(~accepting[:, None] & (order >= position[:, None]), ALMOST_ONE, 0.0)
    bound = np.concatenate([np.full(num_draft, -1), x])
    num_lanes = len(position)
    p, drafts = np.repeat(p, num_lanes, axis=0), np.repeat(drafts, num_lanes, axis=0)
    q = None if q is None else np.repeat(q, num_lanes, axis=0)
    sweeps, fixed = (np.tile(a, (num_paths, 1)) for a in (sweeps, fixed))
    accepting, position, bound = (np.tile(a, num_paths) for a in (accepting, position, bound))

    def holds(u: Floats) -> Bools:
        accept = np.where(sweeps, u[:, None], fixed)
        choose = np.where(accepting, 0.0, u)
        counts, token_ids = _run(scene, p, drafts, q, accept, choose)
        chosen = np.take_along_axis(token_ids, position[:, None], axis=1)[:, 0]
        chosen_here = (counts == position) & (chosen <= bound)
        return np.where(accepting, counts > position, chosen_here)

    return step_positions(holds, len(position))


def _paths(scene: Scene, emitted: Prefix, probability: float) -> Iterator[_Path]:
    paths = [_Path(emitted, (), probability, ())]
    for _ in range(scene.depth(emitted)):
        longer = []
        for path in paths:
            drawn_from = scene.proposal(emitted, path.draft)
            q = (scene.handed_over or scene.proposal)(emitted, path.draft)
            longer += [
                _Path(
                    emitted, (*path.draft, int(x)), path.probability * drawn_from[x], (*path.q, q)
                )
                for x in np.flatnonzero(drawn_from)
            ]
        paths = longer
    yield from paths


def _with_laws(scene: Scene, paths: list[_Path]) -> Iterator[tuple[_Path, Floats]]:
    by_depth: dict[int, list[_Path]] = defaultdict(list)
    for path in paths:
        by_depth[len(path.draft)].append(path)
    for group in by_depth.values():
        yield from zip(group, measured_law(scene, group), strict=True)


def step_positions(holds: Callable[[Floats], Bools], num_lanes: int) -> Floats:
    """Where in [0, 1] each lane of a predicate, true below and false above, changes over."""
    low, high = np.zeros(num_lanes), np.ones(num_lanes)
    for _ in range(54):
        middle = (low + high) / 2
        held = holds(np.minimum(middle, ALMOST_ONE))
        low, high = np.where(held, middle, low), np.where(held, high, middle)
    for probe in (0.11, 0.37, 0.63, 0.89):
        away = abs(probe - low) > 1e-9
        assert np.array_equal(holds(np.full(num_lanes, probe))[away], (probe < low)[away])
    return (low + high) / 2


def _run(
    scene: Scene,
    p: Floats,
    drafts: NDArray[np.int32],
    q: Floats | None,
    accept: Floats,
    choose: Floats,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Accepted counts [B] and token ids [B, K + 1] of the production law, lane by lane."""
    support = None if scene.support is None or q is None else mx.array(scene.support)

    def law(p: mx.array, draft: mx.array, accept: mx.array, choose: mx.array, *q: mx.array) -> Pair:
        uniforms = Uniforms(accept, mx.broadcast_to(choose, (p.shape[0], 2)))
        acceptance = verification.LAWS[scene.law](
            p, Draft(draft, q[0] if q else None, support), uniforms
        )
        return acceptance.num_accepted, acceptance.token_ids

    # The default segment would pad these tiny vocabularies to 256 columns.
    with mx.stream(mx.cpu), patch.object(sampling, "_SEGMENT", 4):
        numbers = [mx.array(a, dtype=mx.float64) for a in (p, accept, choose, q) if a is not None]
        counts, token_ids = mx.vmap(law)(numbers[0], mx.array(drafts), *numbers[1:])
        return np.array(counts), np.array(token_ids)
