"""What a draft step costs behind a long text, with and without a window.

    python benchmarks/draft_window.py

A block like MiMo-7B's, a quarter as wide, with random weights and keys: milliseconds of one row at
several lengths of the text, attention over everything and over `WINDOW` tokens and the first few,
interleaved. The last line is JSON. How many drafts a window costs depends on the head and the text,
which random weights do not tell.
"""

import json
import statistics
import time
from typing import Any

from mtplx.blas import preload, serving

preload("auto")

import mlx.core as mx  # noqa: E402  # after the BLAS

from mtplx.cache import AttentionCache, SinkCache  # noqa: E402
from mtplx.models.families.mimo import MIMO  # noqa: E402
from mtplx.models.family import BlockPlan, BuiltBlock  # noqa: E402
from mtplx.models.native_head import build_block  # noqa: E402

WINDOW = 512
LENGTHS = (512, 2048, 8192, 32768)
ROUNDS = 15
CONFIG: dict[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 36,
    "intermediate_size": 2752,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-5,
    "vocab_size": 64,
    "max_position_embeddings": 40960,
    "rope_theta": 640_000.0,
}


def filled(cache: AttentionCache, length: int) -> AttentionCache:
    """The cache with `length` random rows."""
    heads = CONFIG["num_key_value_heads"]
    shape = (1, heads, length, CONFIG["hidden_size"] // CONFIG["num_attention_heads"])
    cache.update_and_fetch(mx.random.normal(shape), mx.random.normal(shape))
    mx.eval(cache.state)
    return cache


def step_ms(block: BuiltBlock, cache: AttentionCache, x: mx.array) -> float:
    """Milliseconds of one row, which is then undone."""
    before = cache.offset
    started_s = time.perf_counter()
    mx.eval(block.run(x, [cache]))
    took_s = time.perf_counter() - started_s
    cache.rewind(before)
    return 1000 * took_s


def quantiles(times: list[float]) -> dict[str, float]:
    low, *_, high = statistics.quantiles(times, n=5)
    return {"median_ms": statistics.median(times), "p20_ms": low, "p80_ms": high}


def main() -> None:
    block = build_block(BlockPlan(MIMO, CONFIG, 0))
    mx.eval(block.module.parameters())
    x = mx.random.normal((1, 1, CONFIG["hidden_size"]))
    found: dict[str, dict[str, dict[str, float]]] = {}
    print(f"BLAS: {serving().name}; a block of width {CONFIG['hidden_size']}, window {WINDOW}")
    for length in LENGTHS:
        caches = {
            "whole": filled(AttentionCache(), length),
            "window": filled(SinkCache(window=WINDOW), length),
        }
        times: dict[str, list[float]] = {kind: [] for kind in caches}
        for turn in range(ROUNDS + 2):
            for kind, cache in caches.items():
                took = step_ms(block, cache, x)
                if turn >= 2:  # the first two warm up
                    times[kind].append(took)
        found[str(length)] = {kind: quantiles(times[kind]) for kind in times}
        whole, window = (found[str(length)][kind]["median_ms"] for kind in ("whole", "window"))
        print(f"{length:>6} tokens: {whole:6.2f} ms whole, {window:6.2f} ms with the window")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
