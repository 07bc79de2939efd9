"""Tokens drawn by kernels: the ones that MLX's operations draw, and so the same distribution."""

from collections.abc import Callable
from functools import cache
from itertools import product

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from mtplx.kernels.source import Maker
from mtplx.sampling import draw
from mtplx.speculation import Acceptance, Draft, Uniforms
from mtplx.verification import verify, verify_block
from tests.kernels.hosts import Watch, checked
from tests.kernels.platforms import needs_linux
from tests.metal_host.static_check import check_static, lint
from tests.test_verification import LARGEST, drafted, outcome, sixteenths, uniforms

Floats = NDArray[np.float32]
Law = Callable[..., Acceptance]
Outcome = tuple[int, list[int], int]
GRID = (0.0, 2**-24, 0.25, 0.5, 0.8125, LARGEST)
LAWS = {"rejection": verify, "block": verify_block}
KINDS = ("one-hot", "drawn", "shortlist", "mixed")
WIDTHS = (2, 8, 700)


def random_draft(kind: str, num_draft: int, width: int, seed: int) -> Draft:
    """Of tokens that its distributions may give."""
    rng = np.random.default_rng(seed)
    size = min(width, 5) if kind == "shortlist" else width
    q = sixteenths(rng, num_draft, size)
    columns = [int(rng.choice(np.flatnonzero(row))) for row in q]
    if kind == "shortlist":
        support = rng.permutation(width)[:size].tolist()
        return drafted([support[column] for column in columns], q, support)
    if kind == "mixed":
        return Draft(mx.array(columns, dtype=mx.int32), mx.array(q[:1]), None, (0,))
    return drafted(columns, None if kind == "one-hot" else q)


def pairs(rng: np.random.Generator, count: int) -> list[list[float]]:
    values: list[list[float]] = rng.choice(GRID, size=(count, 2)).tolist()
    return values


def portable(law: Law, p: mx.array, draft: Draft, numbers: Uniforms) -> Outcome:
    """By MLX's operations, which on a GPU kernels would replace."""
    with mx.stream(mx.cpu):
        return outcome(law(p, draft, numbers))


@pytest.mark.parametrize("width", [1, 2, 255, 256, 257, 5000])
def test_a_draw_is_that_of_the_portable_code(width: int, maker: Maker) -> None:
    """At the ends of the unit interval and between, for masses that add up without rounding."""
    choose = mx.array(list(product(GRID, GRID)), dtype=mx.float32)
    row = np.random.default_rng(width).integers(0, 3, size=(1, width)) / 2**13
    row[0, -1] = 2**-13  # there has to be some mass
    rows = mx.array(np.repeat(row, len(choose), axis=0).astype(np.float32))
    with mx.stream(mx.cpu):
        expected = draw(rows, choose)
    assert mx.array_equal(draw(rows, choose, maker=maker), expected)


@pytest.mark.parametrize("width", [49_152, 50_257, 151_936])
def test_no_token_without_probability_is_drawn_from_a_real_vocabulary(
    width: int, maker: Maker
) -> None:
    rng = np.random.default_rng(width)
    row = rng.exponential(size=width) ** 8 * (rng.random(width) < 0.01)
    row[rng.integers(width)] = 1e-30
    choose = mx.array(list(product(GRID, GRID)), dtype=mx.float32)[::5]
    for scale in (1.0, 1e-14):
        probs = np.repeat((row * scale)[None], len(choose), axis=0).astype(np.float32)
        drawn = np.array(draw(mx.array(probs), choose, maker=maker))
        assert np.all(probs[0, drawn] > 0)


@pytest.mark.parametrize("at", [0, 3])
def test_a_grid_of_numbers_draws_each_column_as_often_as_its_mass(at: int, maker: Maker) -> None:
    """The second number decides between columns of a segment, the first between segments."""
    mass = np.zeros(5 * 256, dtype=np.float32)
    mass[256 * at : 256 * at + 8] = np.array([3, 0, 1, 5, 2, 0, 1, 4]) / 32
    mass[1100:1102] = 7 / 32, 9 / 32
    fractions = [(i + 0.5) / 16 for i in range(16)]
    choose = mx.array(list(product(fractions, fractions)), dtype=mx.float32)
    rows = mx.array(np.repeat(mass[None], 256, axis=0))
    drawn = np.array(draw(rows, choose, maker=maker))
    assert np.array_equal(np.bincount(drawn, minlength=len(mass)), mass * 256)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("law", LAWS)
def test_a_law_gives_what_the_portable_code_gives(law: str, kind: str, maker: Maker) -> None:
    """Accepted count, tokens and underflows, on a grid of numbers."""
    rng = np.random.default_rng(KINDS.index(kind))
    for width, num_draft in product(WIDTHS, (1, 2, 4)):
        for seed in range(3):
            p = mx.array(sixteenths(rng, num_draft + 1, width))
            draft = random_draft(kind, num_draft, width, seed)
            accept = rng.choice(GRID, size=num_draft).tolist()
            numbers = uniforms(accept, pairs(rng, num_draft + 1))
            found = LAWS[law](p, draft, numbers, maker=maker)
            assert outcome(found) == portable(LAWS[law], p, draft, numbers)


@pytest.mark.parametrize("law", LAWS)
def test_a_refused_token_is_replaced_by_the_law_of_the_residual(law: str, maker: Maker) -> None:
    """Every number of a grid once: as often each token as its share of what p has over q."""
    p = np.array([[1, 6, 5, 0, 4], [16, 0, 0, 0, 0], [4, 4, 4, 4, 0]], dtype=np.float32) / 16
    q = np.array([[9, 2, 1, 4, 0], [0, 16, 0, 0, 0]], dtype=np.float32) / np.float32(16)
    left = np.maximum(p[0] - q[0], 0)  # of 12 sixteenths
    counts = np.zeros(5)
    for i in range(24):
        numbers = uniforms([0.99, 0.99], [[0.3, (i + 0.5) / 24]] * 3)
        result = LAWS[law](mx.array(p), drafted([3, 1], q), numbers, maker=maker)
        num_accepted, (token,), _ = outcome(result)
        assert num_accepted == 0
        counts[token] += 1
    assert np.array_equal(counts, left / left.sum() * 24)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("width", [3, 600])
def test_a_residual_without_mass_falls_back_to_p(law: str, width: int, maker: Maker) -> None:
    """And is counted. So that it can happen at all, q is a little more than p everywhere."""
    p = np.zeros((3, width), dtype=np.float32)
    p[:, 1] = 0.5
    p[:, -1] = 0.5
    q = (p[:2] + (p[:2] > 0) * 2**-20).astype(np.float32)
    numbers = uniforms([LARGEST, LARGEST], [[0.75, 0.75]] * 3)
    result = LAWS[law](mx.array(p), drafted([1, 1], q), numbers, maker=maker)
    expected = portable(LAWS[law], mx.array(p), drafted([1, 1], q), numbers)
    assert outcome(result) == expected == (0, [width - 1], 1)


def test_rows_that_are_no_distribution_give_a_token_there_is(maker: Maker) -> None:
    """Nobody uses it, but the embedding is asked for it before the host knows."""
    for value in (float("nan"), float("inf"), 0.0):
        drawn = draw(mx.full((1, 300), value), mx.array([[0.9, 0.9]]), maker=maker)
        assert 0 <= np.array(drawn)[0] < 300


def test_rows_are_drawn_as_each_alone(maker: Maker) -> None:
    rng = np.random.default_rng(0)
    probs = mx.array(rng.exponential(size=(4, 1000)).astype(np.float32))
    choose = mx.array(rng.random((4, 2)).astype(np.float32))
    alone = [draw(probs[i : i + 1], choose[i : i + 1], maker=maker).item() for i in range(4)]
    assert draw(probs, choose, maker=maker).tolist() == alone


def run_all(maker: Maker, width: int) -> list[mx.array]:
    """Every way that the kernels are called."""
    results = [draw(mx.full((2, width), 0.5), mx.array([[0.4, 0.6]] * 2), maker=maker)]
    for law, kind in product(LAWS.values(), KINDS):
        p = mx.array(sixteenths(np.random.default_rng(1), 3, width))
        numbers = uniforms([0.9, 0.9], [[0.4, 0.6]] * 3)
        result = law(p, random_draft(kind, 2, width, 0), numbers, maker=maker)
        results += [result.token_ids, result.num_underflows]
    return results


@needs_linux
def test_nothing_is_undefined() -> None:
    mx.eval(run_all(checked, 600))


@needs_linux
def test_metal_would_take_the_text() -> None:
    """Also where inputs are so small that they lie in constant memory."""
    watch = Watch()
    for width in (2, 600):
        mx.eval(run_all(watch, width))
    for text in {result.text for result in watch.results}:
        assert check_static(text) == []
        assert lint(text) == []


@cache
def rounds() -> list[tuple[Law, mx.array, Draft, Uniforms, Outcome]]:
    """Of tokens in two segments, and what the portable code makes of them."""
    found = []
    for seed in range(24):
        rng = np.random.default_rng(seed)
        p, q = np.zeros((3, 700), np.float32), np.zeros((2, 700), np.float32)
        columns = [3, 4, 40, 41, 90, 130, 300, 301, 511]
        p[:, columns], q[:, columns] = sixteenths(rng, 3, 9), sixteenths(rng, 2, 9)
        draft = drafted([int(rng.choice(np.flatnonzero(row))) for row in q], q)
        eighths = (rng.integers(0, 8, size=(3, 2)) / 8).tolist()
        numbers = uniforms(rng.choice(GRID, size=2).tolist(), eighths)
        for law in LAWS.values():
            expected = portable(law, mx.array(p), draft, numbers)
            found.append((law, mx.array(p), draft, numbers, expected))
    return found


def faults(maker: Maker) -> int:
    """Rounds that kernels end otherwise."""
    return sum(
        outcome(law(p, draft, numbers, maker=maker)) != expected
        for law, p, draft, numbers, expected in rounds()
    )


# Slips of the hand, each with what it becomes.
WRONG = {
    "q is not subtracted": ("scale * whole - taken", "scale * whole"),
    "the absolute difference": ("max(scale * whole - taken, 0.0f)", "abs(scale * whole - taken)"),
    "q of the first token": ("? min(row, rows_of_q - 1) : 0", "? 0 : 0"),
    "the bonus token from a residual": ("PROPOSAL != NOTHING && row + 1 < rows", "true"),
    "block: p without its weight": ("max(scale * whole", "max(whole"),
    "up to the target and not past it": ("before + running > target", "before + running >= target"),
    "the segments before are forgotten": ("before += simd_shuffle(running, 31);", ""),
    "one number for both": ("SEGMENT, second, lane)", "SEGMENT, first, lane)"),
    "the least sum for the whole": ("running, 31)", "running, 0)"),
    "columns of the first segment": ("segment * SEGMENT, whole}", "0, whole}"),
}


@needs_linux
def test_the_kernels_make_no_fault() -> None:
    assert faults(Watch()) == 0


@needs_linux
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_kernel_draws_other_tokens(case: str) -> None:
    """The comparisons above would fail."""
    old, new = WRONG[case]
    assert faults(Watch(replace={old: new})) > 0


# Faults that may give right numbers, and what is said of them.
FOUND = {
    "every lane writes": ("  if (lane == 0) {\n    sums", "  {\n    sums", "data race"),
    "columns behind the last": (
        "column < columns ? p[column] : 0.0f",
        "p[column]",
        "out-of-bounds read",
    ),
}


@needs_linux
@pytest.mark.parametrize("case", FOUND)
def test_a_fault_is_found(case: str) -> None:
    """In the checked build, whatever the numbers are."""
    old, new, said = FOUND[case]
    watch = Watch(checked=True, replace={old: new})
    mx.eval(draw(mx.full((1, 600), 0.5), mx.array([[0.4, 0.6]]), maker=watch))
    assert any(said in finding for result in watch.results for finding in result.findings)
