"""The caches of one layer that keeps several states, as one."""

from collections.abc import Iterable, Iterator, Sequence

import mlx.core as mx

from mtplx.cache.snapshots import pack, unpack
from mtplx.speculation import LayerCache, Snapshot


class CacheGroup:
    """Several caches that move in step; mlx-lm's models take them by index."""

    def __init__(self, members: Sequence[LayerCache], name: str = "group") -> None:
        self.members, self.name = tuple(members), name

    def __getitem__(self, index: int) -> LayerCache:
        return self.members[index]

    @property
    def keeps_every_length(self) -> bool:
        return all(member.keeps_every_length for member in self.members)

    @property
    def num_replays(self) -> int:
        return sum(member.num_replays for member in self.members)

    @property
    def offset(self) -> int:
        return self.members[0].offset

    def check(self, start: int, num_rows: int) -> None:
        for member in self.members:
            member.check(start, num_rows)

    def keep(self, num_tokens: int) -> None:
        for member in self.members:
            member.keep(num_tokens)

    def reaches(self, length: int) -> bool:
        return all(member.reaches(length) for member in self.members)

    def rewind(self, length: int) -> None:
        for member in self.members:
            member.rewind(length)

    def snapshot(self, *, whole: bool = False) -> Snapshot:
        return pack([member.snapshot(whole=whole) for member in self.members])

    def restore(self, snapshot: Snapshot) -> None:
        for member, part in zip(self.members, unpack(snapshot), strict=True):
            member.restore(part)

    @property
    def state(self) -> list[mx.array]:
        return [array for member in self.members for array in member.state]

    @property
    def num_bytes(self) -> int:
        return sum(member.num_bytes for member in self.members)


def single_caches(layers: Iterable[LayerCache]) -> Iterator[LayerCache]:
    """The caches of layers, those of groups one by one."""
    for layer in layers:
        if isinstance(layer, CacheGroup):
            yield from single_caches(layer.members)
        else:
            yield layer
