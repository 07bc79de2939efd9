"""Tiny models of mlx-lm's as targets, with a random head that drafts for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from mtplx.models.drafter import HeadDrafter
from mtplx.models.head import LlamaHead
from mtplx.models.llama import LlamaDims
from mtplx.models.matrix import Matrix
from mtplx.models.mlx_lm_target import MlxLmTarget, mlx_lm_target
from mtplx.state import DecodeState
from tests.tiny import DIMS, same, tiny_head
from tests.undo.passes import hold_the_same
from tests.undo.tiny_models import build, config_of


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a head takes from its trunk."""

    dims: LlamaDims
    embedding: Matrix
    lm_head: Matrix


@cache
def target_of(model_type: str) -> MlxLmTarget:
    return mlx_lm_target(build(model_type), config_of(model_type), model_type)


def drafter_of(target: MlxLmTarget) -> HeadDrafter:
    parts = _Parts(DIMS, target.embedding, target.lm_head)
    return HeadDrafter(LlamaHead(parts, tiny_head()))


def state_of(model_type: str) -> DecodeState:
    target = target_of(model_type)
    return DecodeState(target, drafter_of(target))


def assert_holds(state: DecodeState, token_ids: Sequence[int]) -> None:
    """The state is what reading exactly these tokens gives, and the head's what they give it."""
    assert state.token_ids == list(token_ids)
    target: object = getattr(state.target, "inner", state.target)
    assert isinstance(target, MlxLmTarget)
    fresh = DecodeState(target, drafter_of(target))
    fresh.begin([*token_ids, 0], drafting=True)
    assert hold_the_same(state.cache, fresh.cache)
    assert isinstance(state.drafter, HeadDrafter)
    assert isinstance(fresh.drafter, HeadDrafter)
    num_rows = state.drafter.num_rows
    assert num_rows <= fresh.drafter.num_rows
    for held, other in zip(state.drafter.cache, fresh.drafter.cache, strict=True):
        assert held.offset == num_rows
        pairs = zip(held.state, other.state, strict=num_rows > 0)
        assert all(same(a[..., :num_rows, :], b[..., :num_rows, :]) for a, b in pairs)
