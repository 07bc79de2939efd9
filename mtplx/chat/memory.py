"""How many tokens of context the memory that is free can hold."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mtplx.speculation import LayerCache, Target

KEPT_FREE_BYTES = 256 << 20  # for everything else: the system, other programs, temporary arrays
_CGROUP = Path("/sys/fs/cgroup")


def tokens_that_fit(bytes_per_token: int, held_bytes: int, free_bytes: int) -> int:
    """Tokens that caches can have which hold `held_bytes` already."""
    usable = held_bytes + max(free_bytes - KEPT_FREE_BYTES, 0)
    return usable // max(bytes_per_token, 1)


def cache_bytes_per_token(target: "Target") -> int:
    """What each further token adds to the caches of a target; found out with a pass of one."""
    import mlx.core as mx

    from mtplx.cache import STEP

    cache = target.make_cache()
    target.forward(mx.array([0]), cache)
    return growing_bytes(cache) // STEP


def growing_bytes(layers: "Iterable[LayerCache]") -> int:
    """What caches hold that grow with the text; windows and recurrent state do not."""
    from mtplx.cache import single_caches

    growing = (layer for layer in single_caches(layers) if layer.keeps_every_length)
    return sum(layer.num_bytes for layer in growing)


def free_bytes() -> int:
    """Memory that can still be taken without taking it from other programs."""
    import mlx.core as mx

    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if sys.platform == "darwin":
        info = mx.device_info()
        most = int(info.get("max_recommended_working_set_size", total))
        return most - mx.get_active_memory()
    return min(total, *_linux_free_bytes())


def _linux_free_bytes() -> list[int]:
    """What the system and the control group of this process have left, as far as they tell."""
    found = [sys.maxsize]
    with suppress(OSError, IndexError, ValueError):
        info = Path("/proc/meminfo").read_text()
        found.append(int(info.partition("MemAvailable:")[2].split()[0]) * 1024)
    with suppress(OSError, IndexError, ValueError):
        limit, used = (int((_CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        stat = (_CGROUP / "memory.stat").read_text()
        # Pages of files count as used, and are given back when something else needs them.
        found.append(limit - used + int(stat.partition("inactive_file ")[2].split()[0]))
    return found
