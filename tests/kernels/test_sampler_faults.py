"""What the kernels of distributions must not do, and that tests see it when they do."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import pytest

from mtplx.kernels import sampler
from mtplx.kernels.source import Kernel
from mtplx.sampling import warp
from tests.kernels.hosts import Watch, checked, fast
from tests.kernels.platforms import needs_linux
from tests.kernels.test_sampler_rows import (
    CHUNK,
    FILTERS,
    close,
    halves,
    has_the_best,
    history,
    normal,
    same_kept,
)
from tests.metal_host.static_check import check_static, lint

pytestmark = needs_linux


@pytest.mark.parametrize("name", ["nothing", "top-k", "top-p"])
def test_nothing_is_undefined(name: str) -> None:
    """No race, nothing out of bounds or uninitialised."""
    params = FILTERS[name]
    found = warp(mx.array(halves(2, CHUNK + 5)), params, history(2), maker=checked)
    mx.eval(found.probs, found.finite)


def test_metal_would_take_the_text() -> None:
    """Also where inputs are so small that they lie in constant memory."""
    watch = Watch()
    for width in (5, 300):
        for name in ("nothing", "top-k", "top-p"):
            rows = mx.array(normal(1, width)).astype(mx.bfloat16)
            mx.eval(warp(rows, FILTERS[name], history(1), maker=watch).probs)
    for text in {result.text for result in watch.results}:
        assert check_static(text) == []
        assert lint(text) == []


@dataclass(eq=False, slots=True)
class Planted:
    """A maker that runs kernels unchanged, but those that hold some pieces of text."""

    watch: Watch

    def __call__(
        self, name: str, inputs: Sequence[str], outputs: Sequence[str], source: str, header: str
    ) -> Kernel:
        planted = all(piece in header for piece in self.watch.replace)
        maker = self.watch if planted else fast
        return maker(name, inputs, outputs, source, header)


# Slips of the hand, each with what it becomes, and the filter that shows it.
WRONG = {
    "a threshold that is not kept": (
        "top-k",
        "chosen[i] = keys[i] == cut.key &&",
        "chosen[i] = false &&",
    ),
    "all that equal the threshold": ("top-k", "before[i] < cut.ties", "true"),
    "one tie too many": ("top-k", "before[i] < cut.ties", "before[i] <= cut.ties"),
    "ties from the end": (
        "top-k",
        "(chosen[i] && before[i] < cut.ties)",
        "(chosen[i] && before[i] >= ties - cut.ties)",
        "  ranked<EACH, THREADS>(chosen, before, counts, simdgroup, lane);",
        "  const uint ties = ranked<EACH, THREADS>(chosen, before, counts, simdgroup, lane);",
    ),
    "the least for the best": ("top-k", "NUM_BINS - 1 - (lane", "(lane"),
    "negative scores in the wrong order": ("top-k", "? ~bits : bits", "? bits ^ 0 : bits"),
    "ids of the chunk for ids of the row": ("top-k", "NAMED ? int(ids[column])", "false ? 0"),
    "nothing but the first chunk": ("nothing", "chunk < chunks; chunk += 32", "chunk < 1; chunk++"),
    "each chunk by its own peak": (
        "nothing",
        "* exp2((of_chunk - peak) * scale)",
        "* 1.0f",
    ),
    "no temperature": ("nothing", "- row.peak) * scale)", "- row.peak))"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_kernel_keeps_other_tokens(case: str) -> None:
    """The comparisons above would fail."""
    name, *words = WRONG[case]
    pieces = dict(zip(words[::2], words[1::2], strict=True))
    logits, params = halves(3, CHUNK + 700), FILTERS[name]
    assert same_kept(logits, params, fast)
    watch = Watch(replace=pieces)
    assert not same_kept(logits, params, Planted(watch))
    assert watch.results, "no kernel has the text"


def test_a_byte_that_is_not_looked_at_shows() -> None:
    watch = Watch(replace={"shift >= 0": "shift > 0"})
    assert not has_the_best(close(600), 300, watch)


BARRIER = "  threadgroup_barrier(mem_flags::mem_threadgroup);  // "
# Barriers that are left out, and the filter whose kernel has them.
MISSING = {
    "peaks are written": "nothing",
    "sums are written": "nothing",
    "bins are empty": "top-k",
    "bins are full": "top-k",
    "the bin is found": "top-k",
    "counts are written": "top-k",
    "counts are added up": "top-k",
    "counts are read": "top-k",
}


@pytest.mark.parametrize("comment", MISSING)
def test_a_missing_barrier_is_found(comment: str) -> None:
    """In the checked build, whatever the numbers are."""
    watch = Watch(checked=True, replace={BARRIER + comment: ""})
    rows = mx.array(halves(1, 600))
    warp(rows, FILTERS[MISSING[comment]], history(1), maker=Planted(watch))
    assert any("data race" in finding for result in watch.results for finding in result.findings)


def test_a_missing_barrier_between_zeros_and_probabilities_is_found() -> None:
    barrier = "  threadgroup_barrier(mem_flags::mem_device);  // zeros are written"
    watch = Watch(checked=True, replace={barrier: ""})
    mx.eval(sampler.spread(mx.ones((1, 2)), mx.array([[3, 600]]), 700, maker=watch))
    assert any("data race" in finding for finding in watch.results[0].findings)
