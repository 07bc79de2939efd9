"""A trunk whose matrices are split over several machines (tensor parallelism, by mlx-lm's `shard`).

Rank 0 decodes as if it were alone: it has the head, the output layer, the law and the text. The
other ranks only run its passes over their parts of the layers, and follow it when it keeps or
undoes tokens, as they are told (`orders.py`). So nothing that rank 0 decides, by a clock, a
random number or a rounding of its own chip, has to come out alike anywhere else.
"""

import weakref
from dataclasses import dataclass, fields
from typing import Any

import mlx.core as mx

from mtplx.errors import RollbackError, UnsupportedTensorError
from mtplx.models.mlx_lm_target import MlxLmTarget
from mtplx.models.orders import Act, Orders, received, received_tokens
from mtplx.models.undo import layer_caches
from mtplx.speculation import LayerCache, Snapshot


def shard(model: Any, group: mx.distributed.Group, name: str) -> None:
    """Leave of the layers of an mlx-lm model the part of this rank, lazily.

    The output layer stays whole. Raises UnsupportedTensorError for an architecture that mlx-lm
    cannot split, or not over so many machines.
    """
    if not hasattr(model, "shard"):
        raise UnsupportedTensorError(
            f"{name} cannot be split over machines: mlx-lm has no way to for this architecture. "
            "Run it on one, without --distributed."
        )
    owner = model.get("language_model", model)
    output, size = owner.get("lm_head"), group.size()
    _check_heads(model, size, name)
    try:
        model.shard(group)
    except (ValueError, AssertionError) as error:
        raise UnsupportedTensorError(
            f"{name} cannot be split over {size} machines: {error} Use fewer of them."
        ) from error
    if output is not None:
        # mlx-lm splits the output layer of some models, and gathers the logits where it calls it.
        owner.lm_head, owner.sharding_group = output, None


# Architectures in which mlx-lm repeats heads of keys and values where there are too few.
_REPEATING = ("qwen3_5", "qwen3_5_moe")
_HEAD_COUNTS = (
    "num_attention_heads",
    "num_key_value_heads",
    "linear_num_key_heads",
    "linear_num_value_heads",
)


def _check_heads(model: Any, size: int, name: str) -> None:
    """mlx-lm would split matrices within a head where their number is no multiple of `size`."""
    arguments = model.args
    text = getattr(arguments, "text_config", None)
    for field in _HEAD_COUNTS:
        count = text.get(field) if isinstance(text, dict) else getattr(arguments, field, None)
        repeats = field == "num_key_value_heads" and model.model_type in _REPEATING
        if isinstance(count, int) and count % size and not (repeats and size % count == 0):
            raise UnsupportedTensorError(
                f"{name} cannot be split over {size} machines: its {field} is {count}. Use a "
                "number of machines that divides it."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedTarget(MlxLmTarget):
    """A split trunk as rank 0's decode loop sees it (speculation.Target)."""

    orders: Orders

    def make_cache(self) -> list[LayerCache]:
        return [*layer_caches(self.model), MirroredCaches(self.orders)]

    def forward(self, token_ids: mx.array, cache: list[LayerCache]) -> mx.array:
        *layers, others = cache
        assert isinstance(others, MirroredCaches)
        token_ids = self.orders.start_pass(others.number, token_ids)
        hidden: mx.array = self.trunk(token_ids[None], cache=layers)
        # Now, so that the sums of this pass come before whatever is sent next.
        mx.async_eval(hidden)
        others.offset += int(token_ids.shape[0])
        return hidden[0]


def sharded_target(target: MlxLmTarget, orders: Orders) -> ShardedTarget:
    """A target, whose model has been split, as rank 0's."""
    values = {field.name: getattr(target, field.name) for field in fields(MlxLmTarget)}
    return ShardedTarget(**values, orders=orders)


class MirroredCaches:
    """Stands for the caches of all other ranks, behind those of rank 0 (speculation.LayerCache).

    It holds nothing; what is asked of it is passed on. Whether something can be undone, the caches
    of rank 0 say for all.
    """

    keeps_every_length = True
    num_replays = 0
    num_bytes = 0

    def __init__(self, orders: Orders) -> None:
        orders.num_opened += 1
        self.orders, self.number = orders, orders.num_opened
        self.offset = 0
        self._start = 0  # of the last pass
        orders.add(Act.OPEN, self.number)
        weakref.finalize(self, orders.add, Act.CLOSE, self.number)

    @property
    def state(self) -> list[mx.array]:
        return []

    def check(self, start: int, num_rows: int) -> None:
        self._start = start

    def keep(self, num_tokens: int) -> None:
        self.offset = self._start + num_tokens
        self.orders.add(Act.KEEP, self.number, num_tokens)

    def reaches(self, length: int) -> bool:
        return True

    def rewind(self, length: int) -> None:
        self.offset = length
        self.orders.add(Act.REWIND, self.number, length)

    def snapshot(self, *, whole: bool = False) -> Snapshot:
        if whole:
            raise RollbackError(
                "The state of a model that is split over machines cannot be saved: no machine has "
                "all of it. Save the conversation without its state."
            )
        self.orders.num_marks += 1
        mark = self.orders.num_marks
        self.orders.add(Act.MARK, self.number, mark)
        ticket = mx.array([mark])
        weakref.finalize(ticket, self.orders.add, Act.FORGET, self.number, mark)
        return Snapshot((mark, self.offset), (ticket,))

    def restore(self, snapshot: Snapshot) -> None:
        mark, self.offset = snapshot.numbers
        self.orders.add(Act.RETURN, self.number, mark)


@dataclass(slots=True)
class _Followed:
    """The caches of this rank that belong to caches of rank 0's, and states to come back to."""

    layers: list[LayerCache]
    marks: dict[int, list[Snapshot]]


def follow(target: MlxLmTarget, group: mx.distributed.Group) -> None:
    """Do as rank 0 says until it ends. A lost connection is a RuntimeError of MLX's."""
    opened: dict[int, _Followed] = {}
    for order in received(group):
        if order.act is Act.OPEN:
            opened[order.caches] = _Followed(target.make_cache(), {})
        elif order.act is Act.CLOSE:
            del opened[order.caches]
        elif order.act is Act.FORGET:
            if order.caches in opened:
                del opened[order.caches].marks[order.number]
        elif order.act is Act.PASS:
            layers = opened[order.caches].layers
            hidden = target.forward(received_tokens(group, order.number), layers)
            mx.eval(hidden, [layer.state for layer in layers])
        else:
            _move(opened[order.caches], order.act, order.number)


def _move(followed: _Followed, act: Act, number: int) -> None:
    """Go back or on as rank 0's caches did."""
    layers, marks = followed.layers, followed.marks
    if act is Act.KEEP:
        for layer in layers:
            layer.keep(number)
    elif act is Act.REWIND:
        for layer in layers:
            layer.rewind(number)
    elif act is Act.MARK:
        marks[number] = [layer.snapshot() for layer in layers]
    else:
        assert act is Act.RETURN, act
        for layer, snapshot in zip(layers, marks[number], strict=True):
            layer.restore(snapshot)
