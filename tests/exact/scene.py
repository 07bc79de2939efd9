"""What is enumerated: a target, a drafter and a stopping rule, small enough to list all texts."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Prefix = tuple[int, ...]
Tree = Callable[[Prefix], Floats]
JointLaw = dict[Prefix, float]


@dataclass(frozen=True, slots=True)
class Scene:
    """One target with one drafter under one law.

    target: (emitted, draft) -> [K + 1, V], the rows of a verify pass over the draft.
    proposal: (emitted, draft so far) -> [V], what the next draft token is drawn from.
    depth: how many tokens the round after these emitted ones drafts at most.
    one_hot: the draft positions that are handed over as one-hot, without probabilities.
    support: the ids that proposals are handed over for; None is all.
    handed_over: the q that the drafter hands over if it is not the one it draws from.
    stops_before: whether the chain ends before a token is drawn from this q.
    stops_after: whether the chain ends after this token, which is kept, was drawn from q.
    discards: whether the chain ends and this token, drawn from q, is thrown away. Not exact.
    stop_id, max_tokens: where a text ends.
    """

    target: Callable[[Prefix, Prefix], Floats]
    proposal: Callable[[Prefix, Prefix], Floats]
    depth: Callable[[Prefix], int]
    one_hot: frozenset[int] = frozenset()
    support: tuple[int, ...] | None = None
    handed_over: Callable[[Prefix, Prefix], Floats] | None = None
    stops_before: Callable[[Floats], bool] | None = None
    stops_after: Callable[[Floats, int], bool] | None = None
    discards: Callable[[Floats, int], bool] | None = None
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

    def q(self, emitted: Prefix, draft: Prefix) -> Floats:
        """The q that is handed over for the token after this draft."""
        return (self.handed_over or self.proposal)(emitted, draft)


@dataclass(frozen=True, slots=True)
class Path:
    """One draft that can come about in a round, and how likely it is."""

    emitted: Prefix
    draft: Prefix
    probability: float
    q: tuple[Floats, ...]  # handed over, of each drafted token


def paths(scene: Scene, emitted: Prefix, probability: float = 1.0) -> Iterator[Path]:
    """Every draft of the round that begins after these emitted tokens."""
    growing = [Path(emitted, (), probability, ())]
    for _ in range(scene.depth(emitted)):
        longer = []
        for path in growing:
            drawn_from = scene.proposal(emitted, path.draft)
            if scene.stops_before is not None and scene.stops_before(drawn_from):
                yield path
                continue
            for x in np.flatnonzero(drawn_from).tolist():
                extended = _extended(scene, path, drawn_from, x)
                if scene.discards is not None and scene.discards(drawn_from, x):
                    yield Path(emitted, path.draft, extended.probability, path.q)
                elif scene.stops_after is not None and scene.stops_after(drawn_from, x):
                    yield extended
                else:
                    longer.append(extended)
        growing = longer
    yield from growing


def _extended(scene: Scene, path: Path, drawn_from: Floats, x: int) -> Path:
    q = scene.q(path.emitted, path.draft)
    probability = path.probability * float(drawn_from[x])
    return Path(path.emitted, (*path.draft, x), probability, (*path.q, q))


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
    finished: JointLaw = defaultdict(float)
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
    return dict(finished)


def total_variation(one: JointLaw, other: JointLaw) -> float:
    """Half the summed absolute difference of two distributions over texts."""
    return sum(abs(one.get(t, 0) - other.get(t, 0)) for t in one.keys() | other.keys()) / 2


def mixture(laws: list[tuple[float, JointLaw]]) -> JointLaw:
    """The distribution over texts where each law holds with the probability beside it."""
    mixed: JointLaw = defaultdict(float)
    for weight, law in laws:
        for text, probability in law.items():
            mixed[text] += weight * probability
    return dict(mixed)
