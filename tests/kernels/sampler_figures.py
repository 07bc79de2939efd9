"""Traffic of choosing a token, by MLX's operations and by our kernels, counted.

Operations are counted in the graph that MLX would run: what each reads and writes, a broadcast
array once and views not at all. Kernels are counted by the emulator. Figures are in rows of the
vocabulary in float32. `python -m tests.kernels.sampler_figures` writes the page.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import mlx.core as mx

from mtplx.kernels.source import Maker, metal
from mtplx.sampling import History, SamplingParams, draw, warp
from mtplx.speculation import Draft, Uniforms
from mtplx.verification import verify, verify_block
from tests.kernels.hosts import Watch
from tests.metal_host.traffic import fetched_bytes

PAGE = Path(__file__).parents[2] / "docs" / "kernels.md"
START, END = "<!-- sampler figures -->\n", "<!-- end of sampler figures -->\n"
NUM_DRAFT = 3
WIDTH = 50_257
KERNEL = "CustomKernel"
VIEWS = {"Broadcast", "ExpandDims", "Flatten", "Reshape", "Slice", "Squeeze", "Unflatten"}
GATHERS = {"Gather", "GatherAxis"}  # which read of their first input what they give

# Some arrays, and what is made of them by whoever runs kernels; None is nobody.
Piece = tuple[list[mx.array], Callable[[Maker | None], Callable[..., list[mx.array]]]]


@dataclass(frozen=True, slots=True)
class Traffic:
    """read, written: rows of the vocabulary. launches: operations and kernels."""

    read: float
    written: float
    launches: int


def of_graph(make: Callable[..., list[mx.array]], arrays: list[mx.array]) -> tuple[int, int, int]:
    """Bytes read and written and number of what MLX would launch; kernels count as launches."""
    steps: list[dict[str, Any]] = []
    mx.export_function(steps.append, make, *arrays)
    memory: dict[str, int] = {}
    read = written = launches = 0
    for step in steps:
        if step["type"] != "primitive":
            given = [(name, prod(shape) * d.size) for name, shape, d in step.get("inputs", [])]
            constants = [(name, array.nbytes) for name, array in step.get("constants", [])]
            memory |= dict(given + constants)
            continue
        inputs = [memory[name] for name, *_ in step["inputs"]]
        outputs = {name: prod(shape) * d.size for name, shape, d in step["outputs"]}
        if step["name"] in VIEWS:
            memory |= {name: min(inputs[0], size) for name, size in outputs.items()}
            continue
        memory |= outputs
        launches += 1
        if step["name"] != KERNEL:
            if step["name"] in GATHERS:
                inputs[0] = sum(outputs.values())
            read, written = read + sum(inputs), written + sum(outputs.values())
    return read, written, launches


def traffic(piece: Piece, width: int, *, by_kernels: bool) -> Traffic:
    arrays, make = piece
    read, written, launches = of_graph(make(metal if by_kernels else None), arrays)
    if by_kernels:
        watch = Watch(checked=True)
        mx.eval(make(watch)(*arrays))
        for result in watch.results:
            assert result.findings == []
            read += sum(result.fetched().values())
            stores = fetched_bytes(result.outcome.accesses, result.buffer_names, stores=True)
            written += sum(stores.values())
    return Traffic(read / (4 * width), written / (4 * width), launches)


def warping(temperature: float = 0.8, **filters: float) -> Callable[[int], Piece]:
    """The distributions of a verify pass from logits in float16."""

    def piece(width: int) -> Piece:
        params = SamplingParams(temperature=temperature, **filters)  # type: ignore[arg-type]  # one table
        history = History((), mx.zeros(NUM_DRAFT, dtype=mx.int32))

        def made(maker: Maker | None) -> Callable[..., list[mx.array]]:
            def warped(logits: mx.array) -> list[mx.array]:
                found = warp(logits, params, history, maker=maker)
                return [found.probs, found.complete, found.finite]

            return warped

        return [_logits(NUM_DRAFT + 1, width)], made

    return piece


def drawing(width: int) -> Piece:
    """One token of a distribution."""

    def made(maker: Maker | None) -> Callable[..., list[mx.array]]:
        return lambda probs, uniforms: [draw(probs, uniforms, maker=maker)]

    return [_probs(1, width), mx.array([[0.4, 0.7]])], made


def verifying(law: Callable[..., Any], *, drawn: bool) -> Callable[[int], Piece]:
    """A law over a draft that was drawn, or is one-hot."""

    def piece(width: int) -> Piece:
        p, q = _probs(NUM_DRAFT + 1, width), _probs(NUM_DRAFT, width)[::-1]
        token_ids = mx.argmax(q, axis=-1).astype(mx.int32)
        accept, choose = mx.full(NUM_DRAFT, 0.99), mx.full((NUM_DRAFT + 1, 2), 0.4)

        def made(maker: Maker | None) -> Callable[..., list[mx.array]]:
            def verified(
                p: mx.array, q: mx.array, ids: mx.array, accept: mx.array, choose: mx.array
            ) -> list[mx.array]:
                draft = Draft(ids, q if drawn else None)
                kept = law(p, draft, Uniforms(accept, choose), maker=maker)
                return [kept.num_accepted, kept.token_ids, kept.num_underflows]

            return verified

        return [p, mx.contiguous(q), token_ids, accept, choose], made

    return piece


def _logits(num_rows: int, width: int) -> mx.array:
    return mx.random.normal((num_rows, width), scale=3, key=mx.random.key(0)).astype(mx.float16)


def _probs(num_rows: int, width: int) -> mx.array:
    return mx.softmax(_logits(num_rows, width).astype(mx.float32), axis=-1)


PIECES: dict[str, Callable[[int], Piece]] = {
    "greedy, 4 rows": warping(temperature=0.0),
    "temperature, 4 rows": warping(),
    "top-k 40, 4 rows": warping(top_k=40),
    "top-p 0.9, 4 rows": warping(top_p=0.9),
    "top-k 40, top-p 0.9, 4 rows": warping(top_k=40, top_p=0.9),
    "draw, 1 row": drawing,
    "rejection, 3 drawn tokens": verifying(verify, drawn=True),
    "rejection, 3 one-hot tokens": verifying(verify, drawn=False),
    "block, 3 drawn tokens": verifying(verify_block, drawn=True),
}


def line(name: str, width: int = WIDTH) -> str:
    """The table's line of one piece."""
    both = [traffic(PIECES[name](width), width, by_kernels=k) for k in (False, True)]
    cells = [f"{t.read:.1f} | {t.written:.1f} | {t.launches}" for t in both]
    return f"| {name} | {' | '.join(cells)} |\n"


def table() -> str:
    head = " | ".join(f"{who}: read | written | launches" for who in ("operations", "kernels"))
    return f"| piece | {head} |\n|---{'|---' * 6}|\n" + "".join(line(name) for name in PIECES)


def main() -> None:
    before, rest = PAGE.read_text().split(START)
    _, after = rest.split(END)
    PAGE.write_text(before + START + table() + END + after)


if __name__ == "__main__":
    main()
