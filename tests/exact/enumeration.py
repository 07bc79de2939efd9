"""The joint law of emitted tokens, measured from the production laws in float64.

Nothing is sampled. For a given draft a law is a step function of its uniform numbers, so the
probability of each of its outcomes is a volume between the places where it steps. Those are found
by bisection of the production code itself, which begins where theory puts them and goes over the
whole interval where that is not so. The outcomes of all drafts of all rounds are then added up to
the distribution over whole texts.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from unittest.mock import patch

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mtplx import sampling, verification
from mtplx.speculation import Draft, Uniforms
from tests.exact.closed_forms import thresholds
from tests.exact.scene import Floats, JointLaw, Path, Prefix, Scene, paths

Bools = NDArray[np.bool_]
Ints = NDArray[np.int32]
Pair = tuple[mx.array, mx.array]

ALMOST_ONE = 1 - 2.0**-53
_RESOLUTION = 2.0**-50  # to which a step is located
_NUM_PROBES = 3  # random outcomes per draft that the located steps have to predict


def drafted_law(scene: Scene) -> JointLaw:
    """The distribution over texts of rounds of drafting and verifying."""
    reached: JointLaw = defaultdict(float, {(): 1.0})
    for length in range(scene.max_tokens):
        drafts = [
            path
            for emitted, probability in list(reached.items())
            if len(emitted) == length and not scene.is_over(emitted)
            for path in paths(scene, emitted, probability)
        ]
        for path, law in _with_laws(scene, drafts):
            for num_accepted, token_id in np.argwhere(law).tolist():
                fresh = (*path.draft[:num_accepted], token_id)
                text = scene.cut(path.emitted, fresh)
                reached[text] += path.probability * float(law[num_accepted, token_id])
    return {text: p for text, p in reached.items() if scene.is_over(text)}


def accepted_histogram(scene: Scene, emitted: Prefix = ()) -> Floats:
    """[K + 1], how likely the round after these tokens is to accept 0, 1, ..., K drafted ones."""
    histogram = np.zeros(scene.depth(emitted) + 1)
    for path, law in _with_laws(scene, list(paths(scene, emitted))):
        histogram[: len(law)] += path.probability * law.sum(axis=1)
    return histogram


def mean_accepted(scene: Scene) -> float:
    """Drafted tokens that the first round accepts, measured."""
    histogram = accepted_histogram(scene)
    return float(histogram @ np.arange(len(histogram)))


def measured_law(scene: Scene, drafts: list[Path]) -> Floats:
    """[B, K + 1, V], how likely it is that n tokens of a draft are kept and x follows them.

    The drafts are of one length K.
    """
    lanes = _Lanes(scene, drafts)
    num_draft = lanes.num_draft
    tests = ~np.array(list(np.ndindex(*[2] * num_draft)), dtype=bool).reshape(
        2**num_draft, num_draft
    )
    corners = np.where(tests, 0.0, ALMOST_ONE)  # [C, K], C = 2**K ways for the tests to fall out
    counts, _ = lanes.run(np.tile(corners, (len(drafts), 1)), 0.5, len(corners))
    counts = counts.reshape(len(drafts), -1)  # [B, C]
    accept, below = _located(lanes, corners, counts)
    volumes = np.where(tests, accept[:, None], 1 - accept[:, None]).prod(axis=-1)  # [B, C]
    reached = (volumes[..., None] * (counts[..., None] == np.arange(num_draft + 1))).sum(axis=1)
    _assert_predicts(lanes, accept, below, counts)
    edges = np.pad(below, [(0, 0), (0, 0), (1, 1)])
    edges[..., -1] = 1
    law: Floats = reached[..., None] * np.diff(edges)
    return law


class _Lanes:
    """The production law over B drafts of one length, run with any uniform numbers."""

    def __init__(self, scene: Scene, drafts: list[Path]) -> None:
        self.scene = scene
        self.p = np.stack([scene.target(path.emitted, path.draft) for path in drafts])
        num_drafts, num_rows, vocab_size = self.p.shape
        self.num_draft = num_rows - 1
        self.drafts = np.array([path.draft for path in drafts], dtype=np.int32)
        self.drafts = self.drafts.reshape(num_drafts, self.num_draft)
        self.q = np.array([path.q for path in drafts])
        self.q = self.q.reshape(num_drafts, self.num_draft, vocab_size)
        self.sampled = tuple(i for i in range(self.num_draft) if i not in scene.one_hot)

    def known_q(self) -> Floats:
        """[B, K, V], the q that the law is to reckon with."""
        one_hot = np.eye(self.p.shape[-1])[self.drafts]
        sampled = np.isin(np.arange(self.num_draft), self.sampled)
        known: Floats = np.where(sampled[:, None], self.q, one_hot)
        return known

    def run(self, accept: Floats, choose: Floats | float, repeats: int = 1) -> tuple[Ints, Ints]:
        """Accepted counts and token ids [K + 1], each draft `repeats` times in a row.

        accept: [B * repeats, K]; choose: [B * repeats] or one for all.
        """
        num_lanes = len(self.p) * repeats
        arrays = [self.p, accept, np.broadcast_to(choose, num_lanes)]
        if self.sampled:
            columns = slice(None) if self.scene.support is None else list(self.scene.support)
            arrays.append(self.q[:, list(self.sampled)][..., columns])
        repeated = [a if len(a) == num_lanes else np.repeat(a, repeats, axis=0) for a in arrays]
        drafts = np.repeat(self.drafts, repeats, axis=0)
        # One segment, so that one number decides; the other level of a draw is measured apart.
        with mx.stream(mx.cpu), patch.object(sampling, "_SEGMENT", self.p.shape[-1]):
            numbers = [mx.array(a, dtype=mx.float64) for a in repeated]
            counts, token_ids = mx.vmap(self._law)(mx.array(drafts), *numbers)
            return np.array(counts), np.array(token_ids)

    def _law(self, ids: mx.array, p: mx.array, u: mx.array, v: mx.array, *q: mx.array) -> Pair:
        support = self.scene.support
        draft = Draft(
            ids,
            q[0] if q else None,
            mx.array(support) if q and support is not None else None,
            self.sampled if q and len(self.sampled) < self.num_draft else None,
        )
        uniforms = Uniforms(u, mx.broadcast_to(v, (p.shape[0], 2)))
        acceptance = verification.LAWS[self.scene.law](p, draft, uniforms)
        return acceptance.num_accepted, acceptance.token_ids


def _located(lanes: _Lanes, corners: Floats, counts: Ints) -> tuple[Floats, Floats]:
    """The steps: accept [B, K] and below [B, K + 1, V - 1], as in closed_forms.Thresholds.

    A test is watched at a corner from which it alone changes the count, and the token after n kept
    ones at a corner that keeps n. Where there is none, nothing depends on the step.
    """
    num_drafts, num_rows, vocab_size = lanes.p.shape
    num_draft, num_bounds = num_rows - 1, vocab_size - 1
    bit = len(corners) >> np.arange(1, num_rows)  # [K], from a corner to its neighbour
    index = np.arange(len(corners))
    changes = (counts[:, None] != counts[:, index ^ bit[:, None]]) & (index & bit[:, None] == 0)
    keeps = np.repeat(counts[:, None] == np.arange(num_rows)[:, None], num_bounds, axis=1)
    places = np.concatenate([changes, keeps], axis=1)  # [B, lanes, C]
    corner = places.argmax(axis=-1)
    due = np.take_along_axis(counts, corner, axis=1)  # [B, lanes], the count below the step
    repeats = num_draft + num_rows * num_bounds
    varied = np.arange(repeats)[:, None] == np.arange(num_draft)
    testing = varied.any(axis=1)
    bound = np.where(testing, vocab_size, (np.arange(repeats) - num_draft) % num_bounds)

    def holds(u: Floats) -> Bools:
        accept = np.where(varied, u[..., None], corners[corner])
        accept = accept.reshape(num_drafts * repeats, num_draft)
        found, ids = lanes.run(accept, np.where(testing, 0.5, u).ravel(), repeats)
        found, ids = found.reshape(num_drafts, -1), ids.reshape(num_drafts, repeats, -1)
        chosen = np.take_along_axis(ids, due[..., None], axis=-1)[..., 0]
        return np.asarray((found == due) & (chosen <= bound))

    expected = thresholds(lanes.scene.law, lanes.p, lanes.drafts, lanes.known_q())
    guess = np.concatenate([expected.accept, expected.below.reshape(num_drafts, -1)], axis=1)
    steps = step_positions(holds, guess, np.asarray(places.any(axis=-1)))
    return steps[:, :num_draft], steps[:, num_draft:].reshape(num_drafts, num_rows, -1)


def step_positions(
    holds: Callable[[Floats], Bools], guess: Floats, matters: Bools | None = None
) -> Floats:
    """Where in [0, 1] each lane of a predicate, true below and false above, changes over.

    guess: [...], where to look first; a wrong one costs time alone. matters: [...], the lanes that
    are looked at; the others keep their guess.
    """
    low, high = np.maximum(guess - 4 * _RESOLUTION, 0), np.minimum(guess + 4 * _RESOLUTION, 1)
    starts = (low == 0) | holds(np.minimum(low, ALMOST_ONE))
    ends = (high == 1) | ~holds(np.minimum(high, ALMOST_ONE))
    settled = (starts & ends) if matters is None else (starts & ends) | ~matters
    low, high = np.where(settled, low, 0.0), np.where(settled, high, 1.0)
    while np.max(high - low, initial=0.0) > _RESOLUTION:
        middle = (low + high) / 2
        held = holds(np.minimum(middle, ALMOST_ONE))
        low, high = np.where(held, middle, low), np.where(held, high, middle)
    return (low + high) / 2


def _assert_predicts(lanes: _Lanes, accept: Floats, below: Floats, outcome: Ints) -> None:
    """Random numbers have the outcomes that the steps say: nothing else moves the law.

    outcome: [B, C], the accepted count at each corner, the first test as the highest bit and 0
    where it is passed.
    """
    generator = np.random.default_rng(len(lanes.p))
    place = 2 ** np.arange(lanes.num_draft)[::-1]
    for _ in range(_NUM_PROBES):
        numbers = generator.random(accept.shape)
        choose = generator.random(len(accept))
        counts, token_ids = lanes.run(numbers, choose)
        cell = ((numbers >= accept) * place).sum(axis=1)
        due = np.take_along_axis(outcome, cell[:, None], axis=1)[:, 0]
        steps = np.take_along_axis(below, due[:, None, None], axis=1)[:, 0]
        chosen = np.take_along_axis(token_ids, due[:, None], axis=1)[:, 0]
        clear = (np.abs(numbers - accept) > 1e-9).all(axis=1)
        clear &= (np.abs(choose[:, None] - steps) > 1e-9).all(axis=1)
        right = (counts == due) & (chosen == (choose[:, None] >= steps).sum(axis=1))
        assert right[clear].all(), "the law is not the step function that was measured"


def _with_laws(scene: Scene, drafts: list[Path]) -> Iterator[tuple[Path, Floats]]:
    by_length: dict[int, list[Path]] = defaultdict(list)
    for path in drafts:
        by_length[len(path.draft)].append(path)
    for group in by_length.values():
        yield from zip(group, measured_law(scene, group), strict=True)
