"""What theory says of each law, written down in float64 from the papers, apart from the code.

For a draft x_1..x_K with target rows p_1..p_{K+1} and proposals q_1..q_K, one-hot where a position
is not sampled:

rejection  accept x_i with probability min(1, p_i / q_i), replace a refused one from (p_i - q_i)+
block      P_0 = 1, P_i = min(1, P_{i-1} p_i / q_i), S_i = sum (P_i p_{i+1} - q_{i+1})+; prefix i
           passes a test of its own with S_i / (S_i + 1 - P_i), the whole with P_K, and the longest
           that passes is kept; prefix n is followed by a draw from (P_n p_{n+1} - q_{n+1})+
coupled    x is kept where the noise that chose it from q chooses it from p as well
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.exact.scene import Floats, Path, Scene, paths


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Where a law's outcomes change over, for B drafts of K tokens.

    accept: [B, K], below which a position's number passes its test.
    below: [B, K + 1, V - 1], the distribution function of the token after n kept ones.
    """

    accept: Floats
    below: Floats


def thresholds(law: str, p: Floats, drafts: NDArray[np.int32], q: Floats) -> Thresholds:
    """p: [B, K + 1, V]; drafts: [B, K]; q: [B, K, V]."""
    accept, weights = acceptance_and_weights(law, p, drafts, q)
    left = np.concatenate([np.maximum(weights[..., None] * p[:, :-1] - q, 0), p[:, -1:]], axis=1)
    running = np.cumsum(left, axis=-1)
    return Thresholds(accept, _over(running, running[..., -1:])[..., :-1])


def acceptance_and_weights(
    law: str, p: Floats, drafts: NDArray[np.int32], q: Floats
) -> tuple[Floats, Floats]:
    """How likely each position passes its test, and the weight carried to it, [B, K] both."""
    p_drawn = np.take_along_axis(p[:, :-1], drafts[..., None], axis=-1)[..., 0]
    q_drawn = np.take_along_axis(q, drafts[..., None], axis=-1)[..., 0]
    ratio = _over(p_drawn, q_drawn)
    if law == "rejection":
        return np.minimum(1, ratio), np.ones_like(ratio)
    carried = [np.ones(len(p))]
    for i in range(ratio.shape[1]):
        carried.append(np.minimum(1, carried[-1] * ratio[:, i]))
    weights = np.stack(carried, axis=1)[:, :-1]
    mass = np.maximum(weights[..., None] * p[:, :-1] - q, 0).sum(axis=-1)
    passing = _over(mass, mass + 1 - weights)[:, 1:]
    accept = np.concatenate([passing, carried[-1][:, None]], axis=1)[:, : ratio.shape[1]]
    return accept, weights


def expected_accepted(scene: Scene) -> float:
    """Drafted tokens that the first round accepts: over all prefixes, how likely each is kept."""
    return sum(_weight(scene, prefix) for prefix in _prefixes(scene))


def gains(scene: Scene) -> bool:
    """Whether the block law accepts strictly more than rejection does here.

    It does where a drafted prefix can have lost some of its weight, p below q, and then meets a
    token of which the target has more than the drafter: rejection cannot take that loss back.
    """
    for prefix in _prefixes(scene):
        carried = 1.0
        for p, q in _pairs(scene, prefix):
            if 0 < carried < 1 and p > q:
                return True
            carried = min(1.0, carried * p / q)
    return False


def _weight(scene: Scene, prefix: Path) -> float:
    """The probability that this prefix is drafted and kept."""
    if scene.law == "coupled":
        rows = zip(scene.target((), prefix.draft), prefix.q, prefix.draft, strict=False)
        return float(np.prod([agreement(p, q)[x] for p, q, x in rows]))
    kept = prefix.probability
    carried = 1.0
    for p, q in _pairs(scene, prefix):
        ratio = p / q
        carried = carried * min(1.0, ratio) if scene.law == "rejection" else min(1, carried * ratio)
    return kept * carried


def agreement(p: Floats, q: Floats) -> Floats:
    """[V], how likely the same exponential race is won by each token from p and from q alike.

    Token x wins both where no other arrives earlier in either: 1 / sum_y max(p_y / p_x, q_y / q_x).
    """
    both = (p > 0) & (q > 0)
    ratios = np.maximum(p / np.where(both, p, 1)[:, None], q / np.where(both, q, 1)[:, None])
    result: Floats = np.where(both, 1 / ratios.sum(axis=1), 0)
    return result


def _prefixes(scene: Scene) -> list[Path]:
    """Every non-empty prefix that the first round can draft, with how likely it is drafted."""
    found: dict[tuple[int, ...], Path] = {}
    for path in paths(scene, ()):
        probability = 1.0
        for i in range(1, len(path.draft) + 1):
            probability *= float(scene.proposal((), path.draft[: i - 1])[path.draft[i - 1]])
            draft = path.draft[:i]
            found[draft] = Path((), draft, probability, path.q[:i])
    return list(found.values())


def _pairs(scene: Scene, prefix: Path) -> list[tuple[float, float]]:
    rows = zip(scene.target((), prefix.draft), prefix.q, prefix.draft, strict=False)
    return [(float(p[x]), float(q[x])) for p, q, x in rows]


def _over(part: Floats, whole: Floats) -> Floats:
    """part / whole, and 1 for 0 / 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        result: Floats = np.where(whole > 0, part / np.where(whole > 0, whole, 1), 1.0)
    return result
