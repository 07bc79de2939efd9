"""Several machines as one: joining them, and seeing that they have the same model and software."""

import atexit
from contextlib import suppress
from pathlib import Path

import mlx.core as mx

from mtplx.errors import DistributedError, UsageError
from mtplx.loading.fingerprint import fingerprint
from mtplx.machine import machine
from mtplx.models.mlx_lm_target import MlxLmTarget
from mtplx.models.orders import Orders
from mtplx.models.sharded import ShardedTarget, follow, sharded_target

_TEXT_BYTES = 64  # of what ranks tell each other about one thing


def join() -> mx.distributed.Group:
    """The group of ranks that `mlx.launch` started, this process among them.

    Raises UsageError where it started none or one.
    """
    try:
        group = mx.distributed.init(strict=True)
    except RuntimeError as error:
        raise UsageError(
            "--distributed is for processes that mlx.launch started, and this one was not: "
            f"{error}. For example: mlx.launch --hostfile hosts.json -- mtplx generate …"
        ) from error
    if group.size() < 2:
        raise UsageError(
            "--distributed splits a model over two machines or more, and mlx.launch started one "
            "process. Name more hosts, or leave out --distributed."
        )
    return group


def check_alike(group: mx.distributed.Group, path: Path) -> None:
    """Raises DistributedError, on every rank, unless all have the same model and versions, and
    UsageError for a model that is no folder."""
    if not path.is_dir():
        raise UsageError(
            f"{path} is one file, and only folders of safetensors are split over machines. Run it "
            "on one, without --distributed."
        )
    here = machine()
    mine = {
        "mtplx": str(here["mtplx"]),
        "mlx": str(here["mlx"]),
        "mlx-lm": str(here["mlx_lm"]),
        "model": fingerprint(path),
        "config.json": fingerprint(path / "config.json"),
    }
    rows = mx.array([_padded(text) for text in mine.values()], dtype=mx.int32)
    everybodys = mx.distributed.all_gather(rows[None], group=group)
    for index, what in enumerate(mine):
        texts = [_text(everybodys[rank, index].tolist()) for rank in range(group.size())]  # type: ignore[arg-type]  # one axis
        for rank, text in enumerate(texts):
            if text != texts[0]:
                raise DistributedError(
                    f"The machines differ in {what}: rank 0 has {texts[0]}, rank {rank} has "
                    f"{text}. Give all of them the same."
                )


def lead_or_follow(target: MlxLmTarget, group: mx.distributed.Group) -> ShardedTarget:
    """On rank 0 the whole trunk. Any other rank runs its part until rank 0 ends, and exits.

    Raises DistributedError on those where the connection is lost.
    """
    if group.rank() > 0:
        try:
            follow(target, group)
        except RuntimeError as error:
            raise DistributedError(
                f"Rank {group.rank()} has lost the others: {error}. The first error of another "
                "machine says why."
            ) from error
        raise SystemExit(0)
    orders = Orders(group)
    atexit.register(_end, orders)
    return sharded_target(target, orders)


def _end(orders: Orders) -> None:
    with suppress(RuntimeError):  # somebody has gone already
        orders.end()


def _padded(text: str) -> list[int]:
    content = text.encode()[:_TEXT_BYTES]
    return [*content, *[0] * (_TEXT_BYTES - len(content))]


def _text(content: list[int]) -> str:
    return bytes(n for n in content if n).decode(errors="replace")
