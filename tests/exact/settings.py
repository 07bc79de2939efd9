"""Every law under every setting: what is measured, and what it has to be."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import mlx.core as mx
import numpy as np

from mtplx.params import SamplingParams
from tests.exact import scenes
from tests.exact.closed_forms import expected_accepted, gains
from tests.exact.coupling import mean_agreed, raced_law, texts
from tests.exact.enumeration import drafted_law, mean_accepted
from tests.exact.scene import (
    Floats,
    JointLaw,
    Prefix,
    Scene,
    mixture,
    plain_law,
    total_variation,
)
from tests.warps.reference import expected_probs

TOLERANCE = 1e-12
LAWS = ("rejection", "block", "coupled")
_ROW_TOLERANCE = 2e-6  # float32 against float64
_NUM_TABLES = 150  # tables of noise that the coupled law is run for

Parts = list[tuple[float, Scene]]
"""Scenes, one of which holds, and how likely each is."""


@dataclass(frozen=True, slots=True)
class Setting:
    """parts: what is decoded. whole: what plain decoding draws from, where that is not parts.

    documented: [V], what the warps' documentation says that is drawn from after a text; in the
    float64 of the reference, to which the float32 of the runtime is compared row by row.
    """

    parts: Parts
    whole: Scene | None = None
    documented: Callable[[Prefix], Floats] | None = None

    def under(self, law: str) -> "Setting":
        return replace(self, parts=[(w, replace(scene, law=law)) for w, scene in self.parts])

    def plain(self) -> JointLaw:
        if self.whole is not None:
            return plain_law(self.whole)
        return mixture([(weight, plain_law(scene)) for weight, scene in self.parts])

    def row_error(self) -> float:
        """The largest difference to what is documented, over the rows of all texts."""
        if self.documented is None:
            return 0.0
        scene = self.whole or self.parts[0][1]
        texts = {text[:i] for text in plain_law(scene) for i in range(len(text))}
        errors = [abs(scene.target(text, ())[0] - self.documented(text)).max() for text in texts]
        return float(max(errors))

    def mean(self, of_scene: Callable[[Scene], float]) -> float:
        return sum(weight * of_scene(scene) for weight, scene in self.parts)


@dataclass(frozen=True, slots=True)
class Finding:
    """What was measured of a law under a setting.

    total_variation: between the texts of drafting and those of the target.
    accepted, closed_form: drafted tokens that a first round accepts, measured and by theory.
    rejection: what the rejection law would accept, by theory.
    gains: whether theory has the block law accept strictly more than that.
    row_error: of the warped rows, against the documentation.
    differing: texts that drafting changed, for the same noise; of the coupled law alone.
    deviation: of the accepted count over those tables of noise, in standard errors.
    """

    total_variation: float
    accepted: float
    closed_form: float
    rejection: float
    gains: bool
    row_error: float
    differing: int = 0
    deviation: float = 0.0

    def faults(self, law: str) -> list[str]:
        """What falls short, in words; empty where all is as it has to be."""
        found = []
        if not self.total_variation < TOLERANCE:
            found.append(f"total variation {self.total_variation:.1e}")
        if not abs(self.accepted - self.closed_form) < TOLERANCE:
            found.append(f"{self.accepted:.12f} accepted, not {self.closed_form:.12f}")
        if law == "block" and self.accepted < self.rejection - TOLERANCE:
            found.append("less accepted than by rejection")
        if law == "block" and (self.accepted > self.rejection + TOLERANCE) != self.gains:
            found.append("strictly more accepted than by rejection just where theory says no")
        if not self.row_error < _ROW_TOLERANCE:
            found.append(f"a row is {self.row_error:.1e} from what is documented")
        if self.differing or abs(self.deviation) > 6:
            found.append(f"{self.differing} texts differ, {self.deviation:.1f} standard errors off")
        return found


def examine(law: str, setting: Setting) -> Finding:
    """Enumerate a setting under a law."""
    chosen = setting.under(law)
    coupled = law == "coupled"
    texts_of, count = (raced_law, mean_agreed) if coupled else (drafted_law, mean_accepted)
    drafted = mixture([(weight, texts_of(scene)) for weight, scene in chosen.parts])
    runs = [run_texts(scene) for _, scene in chosen.parts] if coupled else [(0, 0.0)]
    return Finding(
        total_variation(setting.plain(), drafted),
        chosen.mean(count),
        chosen.mean(expected_accepted),
        setting.under("rejection").mean(expected_accepted),
        any(gains(scene) for _, scene in setting.parts),
        setting.row_error(),
        sum(differing for differing, _ in runs),
        max((deviation for _, deviation in runs), key=abs),
    )


def run_texts(scene: Scene) -> tuple[int, float]:
    """Over tables of noise: texts that drafting changes, and how far the accepted count is from
    what theory expects, in standard errors."""
    generator = np.random.default_rng(7)
    vocab_size = len(scene.proposal((), ()))
    size = (_NUM_TABLES, scene.max_tokens + scene.depth(()) + 1, vocab_size)
    noise = generator.exponential(size=size)
    drafted, accepted = texts(scene, noise)
    plain, _ = texts(replace(scene, depth=lambda _: 0), noise)
    error = float(accepted.std()) / len(noise) ** 0.5
    off = float(accepted.mean()) - expected_accepted(scene)
    return sum(a != b for a, b in zip(drafted, plain, strict=True)), off / max(error, 1e-2)


def _alone(family: scenes.Family, size: tuple[int, int, int] = (3, 3, 4)) -> Setting:
    return Setting([(1.0, family(*size, seed=sum(size)))])


def _warped(params: SamplingParams, seed: int = 17) -> Setting:
    parts = [(1.0, scenes.warped(params, 4, 2, 3, seed))]
    return Setting(parts, documented=lambda text: _documented(params, text, seed))


def _integrated(params: SamplingParams, seed: int = 4) -> Setting:
    """XTC: at each position of a text it acts with its probability, or does not."""
    chance, length = params.xtc_probability, 3
    parts = []
    for acting in itertools.product((True, False), repeat=length):
        gates = tuple(0.0 if acts else 1 - 2.0**-24 for acts in acting)
        weight = float(np.prod([chance if acts else 1 - chance for acts in acting]))
        parts.append((weight, scenes.warped(params, 3, 2, length, seed, gates)))

    def mixed(of_gate: Callable[[float], Floats]) -> Floats:
        return chance * of_gate(0.0) + (1 - chance) * of_gate(1.0)

    # Row i of plain decoding is of position i, whatever else acts elsewhere.
    acts, rests = parts[0][1].target, parts[-1][1].target
    whole = replace(
        parts[0][1], target=lambda e, d: mixed(lambda gate: (rests if gate else acts)(e, d))
    )
    return Setting(
        parts, whole, lambda text: mixed(lambda gate: _documented(params, text, seed, gate, 3))
    )


def _documented(
    params: SamplingParams, text: Prefix, seed: int, gate: float = 0.0, vocab_size: int = 4
) -> Floats:
    logits = scenes.logits_after(text, vocab_size, seed)
    for processor in params.processors:
        given = mx.array(logits[None].astype(np.float32))
        token_ids = mx.array([*scenes.PROMPT, *text], dtype=mx.int32)
        logits = np.array(processor(token_ids, given)[0]).astype(np.float64)
    return expected_probs(logits, params, [*scenes.PROMPT, *text], gate)


WARPS = {
    "temperature": SamplingParams(temperature=0.6),
    "greedy": SamplingParams(temperature=0),
    "top-k": SamplingParams(temperature=1.3, top_k=2),
    "top-p": SamplingParams(temperature=1.3, top_p=0.7),
    "min-p": SamplingParams(temperature=0.7, min_p=0.3),
    "top-k, top-p, min-p": SamplingParams(temperature=1.3, top_k=3, top_p=0.8, min_p=0.3),
    "typical-p": SamplingParams(temperature=1.2, typical_p=0.6),
    "repetition": SamplingParams(temperature=1.0, repetition_penalty=1.5, penalty_window=3),
    "penalties": SamplingParams(temperature=1.0, presence_penalty=0.4, frequency_penalty=0.7),
    "DRY": SamplingParams(temperature=1.0, dry_multiplier=0.8, dry_allowed_length=1),
    "processor": SamplingParams(
        temperature=1.0,
        processors=(lambda ids, logits: logits * (1 + 0.3 * mx.sum(ids) + ids[-1]) / 4,),
    ),
    "all at once": SamplingParams(
        temperature=1.1,
        top_p=0.9,
        frequency_penalty=0.5,
        penalty_window=2,
        dry_multiplier=0.5,
        dry_allowed_length=1,
        allowed_ids=(0, 1, 3),
        processors=(lambda ids, logits: logits + 0.3 * (ids[-1] % 2) * mx.arange(4),),
    ),
}
XTC = SamplingParams(temperature=1.4, xtc_probability=0.4, xtc_threshold=0.2)

SETTINGS: dict[str, Callable[[], Setting]] = {
    "fixed depth": lambda: _alone(scenes.sampled),
    "fixed depth, two tokens": lambda: _alone(scenes.sampled, (2, 3, 4)),
    "p, q with zeros": lambda: _alone(scenes.sparse),
    "one-hot": lambda: _alone(scenes.one_hot),
    "mixed positions": lambda: _alone(scenes.mixed),
    "one-hot, then shortlist": lambda: _alone(scenes.one_hot_first),
    "shortlist q": lambda: _alone(scenes.shortlist),
    "entropy stop": lambda: _alone(scenes.entropy_stop),
    "keep, then stop": lambda: _alone(scenes.keep_then_stop),
    "EOS inside the block": lambda: _alone(scenes.stopping),
    "max_tokens inside it": lambda: _alone(scenes.overshooting),
    **{f"p: {name}": partial(_warped, params) for name, params in WARPS.items()},
    "p: XTC integrated out": lambda: _integrated(XTC),
}
