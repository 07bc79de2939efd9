"""A tiny checkpoint and what it says, to hold other layouts of it against."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from mtplx.loading.native_folder import FolderModel, folder_model
from mtplx.models.drafter import HeadDrafter
from mtplx.state import DecodeState
from mtplx.stats import DecodeStats
from tests.families.assembled import VOCAB_SIZE, Recipe, assemble, write_checkpoint
from tests.families.checkpoints import (
    CONVERTED,
    PUBLISHED,
    Tensors,
    converted,
    parted,
    read,
    write,
)
from tests.tiny import finish, random_prompt, start

MAIN, SIDE = "model.safetensors", "mtp.safetensors"
SHARDS = ("model-1.safetensors", "model-2.safetensors")
PROMPT = random_prompt(12, seed=1, vocab_size=VOCAB_SIZE)


@dataclass(frozen=True, slots=True)
class Told:
    """What a loaded folder says: logits of trunk and head, and a text with how it came about."""

    trunk: mx.array
    head: mx.array
    text: list[int]
    accepted: list[float]


@dataclass(frozen=True, slots=True)
class Original:
    """The checkpoint as it is published, and what it says."""

    tensors: Tensors
    config: dict[str, Any]
    told: Told


def original(recipe: Recipe, folder: Path) -> Original:
    tensors, config = read(write_checkpoint(assemble(recipe), folder))
    return Original(tensors, config, told(folder_model(folder)))


def told(model: FolderModel) -> Told:
    assert model.head is not None, model.no_head_reason
    target, head = model.target, model.head.head
    hidden = target.normalise(target.forward(mx.array(PROMPT), target.make_cache()))
    rows = head.run(0, mx.array(PROMPT[1:]), hidden[:-1], head.make_cache()[0])
    stats = DecodeStats()
    state = DecodeState(target, HeadDrafter(head))
    text = finish(start(state, PROMPT, depth=3, stats=stats))
    shares = [float(share) for share in stats.acceptance_per_position]
    return Told(target.logits(hidden), head.logits(0, rows.output), text, shares)


def assert_says_the_same(folder: Path, expected: Told) -> None:
    found = told(folder_model(folder))
    assert mx.array_equal(found.trunk, expected.trunk)
    assert mx.array_equal(found.head, expected.head)
    assert (found.text, found.accepted) == (expected.text, expected.accepted)


Change = Callable[[Tensors], Tensors]
LAYOUTS: dict[str, tuple[Change, dict[str, str]]] = {
    "published": (lambda tensors: tensors, PUBLISHED),
    "converted": (converted, CONVERTED),
}


def stored(folder: Path, made: Original, place: str, trunk_layout: str, head_layout: str) -> Path:
    """The original in a certain layout."""
    parts = parted(made.tensors)
    (change_trunk, label), (change_head, head_label) = LAYOUTS[trunk_layout], LAYOUTS[head_layout]
    trunk, head = change_trunk(parts[0]), change_head(parts[1])
    if place == "embedded":
        return write(folder, made.config, {MAIN: trunk | head}, label)
    names = (MAIN, SIDE) if place == "sidecar" else SHARDS
    return write(
        folder,
        made.config,
        dict(zip(names, (trunk, head), strict=True)),
        dict(zip(names, (label, head_label), strict=True)),
        indexed=names if place == "sharded" else (),
    )
