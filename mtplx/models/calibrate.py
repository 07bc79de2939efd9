"""Whether an MTP head is fed what it was trained on, by how well it foresees the trunk.

A head that is given the hidden state from the wrong side of the final norm, or that hands on the
wrong side of its own, computes without an error and drafts worse. So a text is replayed under each
choice: after every token the head drafts a few, each fed the text's own tokens, and its most
probable token is compared with the trunk's at the same place.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import fmean, stdev
from typing import Literal

import mlx.core as mx

from mtplx.errors import UsageError
from mtplx.models.drafter import HeadDrafter
from mtplx.models.family import MtpFamily
from mtplx.models.native_head import NativeHead
from mtplx.speculation import DraftInput, HiddenStage

DEPTH = 3  # positions that are compared
CONTEXT = 8  # tokens before the first place that is compared, at least
NUM_PLACES = 200
STAGES: tuple[HiddenStage, HiddenStage] = ("after_norm", "before_norm")
SURE = 3.0  # standard errors that a difference has to exceed


@dataclass(frozen=True, slots=True)
class Choice:
    """What feeds a head and what it hands on, and which half of its input comes first."""

    hidden_stage: HiddenStage
    recycle_stage: HiddenStage
    concat: Literal["embedding_first", "hidden_first"]


@dataclass(frozen=True, slots=True)
class Trial:
    """How well a head foresaw the trunk under one choice.

    agreement: at each position of a draft, the share of places where both prefer the same token.
    lengths: at each place, the positions that agree before the first that does not.
    """

    choice: Choice
    agreement: tuple[float, ...]
    lengths: tuple[int, ...]

    @property
    def mean_length(self) -> float:
        """Draft tokens that greedy decoding would have accepted, on average."""
        return fmean(self.lengths)


def calibrate(head: NativeHead, texts: Sequence[Sequence[int]]) -> list[Trial]:
    """A trial of each choice on the same texts, that of the head's family first.

    texts: token ids; best what the model itself writes. Of each the last places are compared,
    `NUM_PLACES` of all together at most. Raises UsageError for texts too short to compare anything.
    """
    num_places = NUM_PLACES // len(texts)
    passes = [_Replay.of(head, token_ids, num_places) for token_ids in texts]
    if not any(replayed.places for replayed in passes):
        raise UsageError(
            f"The text has {sum(map(len, texts))} tokens, and replaying it takes more than "
            f"{CONTEXT + DEPTH}. Give a longer one."
        )
    return [_trial(head, choice, passes) for choice in choices(head.family)]


def choices(family: MtpFamily) -> list[Choice]:
    """The family's own choice first, and last that with the halves of the input swapped."""
    own = Choice(family.hidden_stage, family.recycle_stage, family.concat)
    recycled = STAGES if family.chained else (own.recycle_stage,)
    others = [replace(own, hidden_stage=h, recycle_stage=r) for h in STAGES for r in recycled]
    swapped: Literal["embedding_first", "hidden_first"] = (
        "hidden_first" if own.concat == "embedding_first" else "embedding_first"
    )
    return [own, *(c for c in others if c != own), replace(own, concat=swapped)]


def surely_better(trials: Sequence[Trial]) -> Trial | None:
    """The best of the trials where it beats the first by more than chance; else None."""
    own, best = trials[0], max(trials, key=lambda trial: trial.mean_length)
    gains = [b - a for a, b in zip(own.lengths, best.lengths, strict=True)]
    if len(gains) < 2 or fmean(gains) <= SURE * stdev(gains) / sqrt(len(gains)):
        return None
    return best


@dataclass(frozen=True, slots=True)
class _Replay:
    """A text in the trunk: its tokens [T], hidden states of both stages [T, D], the token that the
    trunk prefers behind each [T], and the rows behind which a whole draft is compared."""

    token_ids: mx.array
    hidden: dict[HiddenStage, mx.array]
    preferred: mx.array
    places: range

    @classmethod
    def of(cls, head: NativeHead, token_ids: Sequence[int], num_places: int) -> "_Replay":
        target, ids = head.target, mx.array(list(token_ids), dtype=mx.int32)
        before = target.forward(ids, target.make_cache())
        after = target.normalise(before)
        preferred = mx.argmax(target.logits(after), axis=-1)
        mx.eval(before, after, preferred)
        end = len(token_ids) - DEPTH
        places = range(max(CONTEXT, end - num_places), end)
        return cls(ids, {"before_norm": before, "after_norm": after}, preferred, places)


def _trial(head: NativeHead, choice: Choice, passes: Sequence[_Replay]) -> Trial:
    family = replace(
        head.family,
        hidden_stage=choice.hidden_stage,
        recycle_stage=choice.recycle_stage,
        concat=choice.concat,
    )
    rows = [row for replayed in passes for row in _rows(replace(head, family=family), replayed)]
    lengths = tuple(next((i for i, hit in enumerate(row) if not hit), len(row)) for row in rows)
    agreement = tuple(fmean(position) for position in zip(*rows, strict=True))
    return Trial(choice, agreement, lengths)


def _rows(head: NativeHead, replayed: _Replay) -> Iterator[list[bool]]:
    """Whether each position of a draft agrees with the trunk, place by place."""
    drafter = HeadDrafter(head)
    hidden, token_ids = replayed.hidden[head.hidden_stage], replayed.token_ids
    if not replayed.places:
        return
    first = replayed.places[0]
    drafter.observe(DraftInput(hidden[:first], token_ids[1 : first + 1]))
    for row in replayed.places:
        preferred = _forced_draft(drafter, hidden[row : row + 1], token_ids[row + 1 :])
        expected = replayed.preferred[row + 1 : row + 1 + len(preferred)]
        hits: list[bool] = (mx.concatenate(preferred) == expected).tolist()  # type: ignore[assignment]
        yield hits


def _forced_draft(drafter: HeadDrafter, hidden: mx.array, token_ids: mx.array) -> list[mx.array]:
    """The token [1] that the head prefers at each position of a draft which is the text's.

    hidden: [1, D], the committed row. token_ids: the text from the token on that follows it.
    """
    preferred: list[mx.array] = []

    def forced(logits: mx.array, step: int) -> tuple[mx.array, None]:
        preferred.append(mx.argmax(logits, axis=-1))
        return token_ids[step + 1 : step + 2], None

    drafter.propose(DraftInput(hidden, token_ids[:1]), DEPTH, forced)
    drafter.keep()
    return preferred
