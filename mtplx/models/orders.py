"""What the first of several machines tells the others to do: orders, in messages of fixed length.

MLX's ring can only combine what all ranks hold, so a message is a sum in which only rank 0 has
anything but zeros. Orders gather until a pass has to be sent with them; a pass is the last of its
message, and its token ids follow. All ranks issue these sums in the same order.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum

import mlx.core as mx

MAX_ORDERS = 12  # of a message


class Act(IntEnum):
    """What an order asks for, and what its number is."""

    END = 1  # nothing more comes
    OPEN = 2  # empty caches
    CLOSE = 3  # drop these caches
    PASS = 4  # rows of a pass
    KEEP = 5  # tokens of the last pass
    REWIND = 6  # tokens in all
    MARK = 7  # remember the state under this number
    RETURN = 8  # go to the state remembered
    FORGET = 9  # drop the state remembered


@dataclass(frozen=True, slots=True)
class Order:
    """caches: which caches it is about, of those that were opened."""

    act: Act
    caches: int = 0
    number: int = 0


@dataclass(slots=True)
class Orders:
    """Rank 0's end. Everything but `add` belongs to one thread."""

    group: mx.distributed.Group
    num_opened: int = 0
    num_marks: int = 0
    _waiting: deque[Order] = field(default_factory=deque)

    def add(self, act: Act, caches: int = 0, number: int = 0) -> None:
        """An order that may wait for the next pass."""
        self._waiting.append(Order(act, caches, number))

    def start_pass(self, caches: int, token_ids: mx.array) -> mx.array:
        """Send what waits and a pass; give its token ids [T] int32 as all ranks will see them."""
        self.add(Act.PASS, caches, token_ids.shape[0])
        self._send()
        return mx.distributed.all_sum(token_ids.astype(mx.int32), group=self.group)

    def end(self) -> None:
        """Let the others go."""
        self.add(Act.END)
        mx.eval(self._send())

    def _send(self) -> mx.array:
        """Start sending what waits; the last message, which has arrived when it is evaluated."""
        message = mx.array(0)
        while self._waiting:
            count = min(MAX_ORDERS, len(self._waiting))
            orders = [self._waiting.popleft() for _ in range(count)]
            numbers = [n for order in orders for n in (order.act, order.caches, order.number)]
            numbers += [0] * (3 * (MAX_ORDERS - count))
            message = mx.distributed.all_sum(mx.array(numbers, dtype=mx.int32), group=self.group)
            mx.async_eval(message)
        return message


def received(group: mx.distributed.Group) -> Iterator[Order]:
    """Orders as they come, on every other rank, up to the last one, which is not among them."""
    while True:
        nothing = mx.zeros(3 * MAX_ORDERS, dtype=mx.int32)
        numbers: list[int] = mx.distributed.all_sum(nothing, group=group).tolist()  # type: ignore[assignment]  # it has one axis
        for i in range(0, len(numbers), 3):
            act, caches, number = numbers[i : i + 3]
            if act == Act.END:
                return
            if act:
                yield Order(Act(act), caches, number)


def received_tokens(group: mx.distributed.Group, num_tokens: int) -> mx.array:
    """The token ids [T] int32 of a pass."""
    return mx.distributed.all_sum(mx.zeros(num_tokens, dtype=mx.int32), group=group)
