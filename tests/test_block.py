"""Block verification, against the paper's algorithm in float64 on random trees."""

from collections.abc import Callable
from itertools import product

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from mtplx.speculation import Acceptance, Draft, Uniforms
from mtplx.verification import verify, verify_block

Floats = NDArray[np.float64]
LARGEST = 1 - 2**-24
TREES = [(2, 2), (2, 4), (3, 3), (5, 2)]
"""(vocabulary, drafted tokens)"""
MIXED = [(), (0,), (1,), (0, 2), (1, 2, 3)]
"""positions that are one-hot"""


class Tree:
    """p and q after every prefix, unrelated from one to the next, some tokens without mass."""

    def __init__(self, vocab_size: int, seed: int, one_hot: tuple[int, ...] = ()) -> None:
        self.vocab_size, self.seed, self.one_hot = vocab_size, seed, one_hot

    def _row(self, prefix: tuple[int, ...], which: int) -> Floats:
        rng = np.random.default_rng([self.seed, which, len(prefix), *prefix])
        weights = rng.dirichlet(np.full(self.vocab_size, 0.8))
        weights[rng.permutation(self.vocab_size)[1:]] *= rng.random(self.vocab_size - 1) > 0.25
        return np.asarray(weights / weights.sum())

    def p(self, prefix: tuple[int, ...]) -> Floats:
        return self._row(prefix, 0)

    def q(self, prefix: tuple[int, ...]) -> Floats:
        row = self._row(prefix, 1)
        return np.eye(len(row))[row.argmax()] if len(prefix) in self.one_hot else row


def decisions(p: Floats, q: Floats, draft: tuple[int, ...]) -> tuple[Floats, Floats, Floats]:
    """P [K + 1], how likely each prefix but the empty one passes [K], what follows each [K + 1, V].

    Algorithm 2 of arXiv 2403.10444 as it is written there.
    """
    num_draft = len(draft)
    reach = [1.0]
    for i, x in enumerate(draft):
        reach.append(min(1.0, reach[-1] * p[i, x] / q[i, x]))
    left = np.array(
        [np.maximum(reach[i] * p[i] - q[i], 0) for i in range(num_draft)] + [p[num_draft]]
    )
    passes = []
    for i in range(1, num_draft):
        mass, rest = left[i].sum(), left[i].sum() + 1 - reach[i]
        passes.append(mass / rest if rest > 0 else 1.0)
    return np.array(reach), np.array([*passes, reach[-1]]), left


def outcomes(p: Floats, q: Floats, draft: tuple[int, ...]) -> Floats:
    """[K + 1, V], how likely n tokens are kept and x follows them."""
    _, passes, left = decisions(p, q, draft)
    longest = np.append(1.0, passes) * np.append(np.cumprod((1 - passes)[::-1])[::-1], 1.0)
    total = left.sum(axis=1, keepdims=True)
    after = np.divide(left, total, out=np.zeros_like(left), where=total > 0)
    return np.asarray(longest[:, None] * after)


def drafts(tree: Tree, num_draft: int) -> list[tuple[tuple[int, ...], float, Floats, Floats]]:
    """Every draft with its probability, its p rows and its q rows."""
    found = []
    for draft in product(range(tree.vocab_size), repeat=num_draft):
        q = np.array([tree.q(draft[:i]) for i in range(num_draft)])
        p = np.array([tree.p(draft[:i]) for i in range(num_draft + 1)])
        probability = float(np.prod(q[np.arange(num_draft), draft]))
        if probability > 0:
            found.append((draft, probability, p, q))
    return found


@pytest.mark.parametrize("one_hot", MIXED)
@pytest.mark.parametrize("size", TREES)
def test_the_reference_keeps_the_joint_law(size: tuple[int, int], one_hot: tuple[int, ...]) -> None:
    """Over all drafts the emitted tokens, gone on with from p, have the law of p, to 1e-12."""
    vocab_size, num_draft = size
    tree = Tree(vocab_size, sum(size), one_hot)
    law = np.zeros((vocab_size,) * (num_draft + 1))
    for draft, probability, p, q in drafts(tree, num_draft):
        for (n, x), share in np.ndenumerate(probability * outcomes(p, q, draft)):
            emitted = (*draft[:n], x)
            rest = num_draft - n
            for tail in product(range(vocab_size), repeat=rest if share else 0):
                text = emitted + (tail if share else (0,) * rest)
                after = [tree.p(text[:i])[text[i]] for i in range(n + 1, num_draft + 1)]
                law[text] += share * np.prod(after)
    for text in np.ndindex(law.shape):
        plain = np.prod([tree.p(text[:i])[text[i]] for i in range(num_draft + 1)])
        assert law[text] == pytest.approx(plain, abs=1e-12)


def made(
    draft: tuple[int, ...], q: Floats, one_hot: tuple[int, ...], support: list[int] | None = None
) -> Draft:
    """The record of a draft whose positions `one_hot` have no probabilities of their own."""
    sampled = tuple(i for i in range(len(draft)) if i not in one_hot)
    columns = list(range(q.shape[1])) if support is None else support
    rows = q[np.ix_(sampled, columns)].astype(np.float32)
    return Draft(
        mx.array(draft, dtype=mx.int32),
        mx.array(rows) if sampled else None,
        None if support is None else mx.array(support, dtype=mx.int32),
        sampled if one_hot else None,
    )


def run(
    law: Callable[[mx.array, Draft, Uniforms], Acceptance],
    p: Floats,
    draft: Draft,
    accept: Floats,
    choose: Floats,
) -> tuple[int, list[int], int]:
    numbers = Uniforms(mx.array(accept.astype(np.float32)), mx.array(choose.astype(np.float32)))
    acceptance = law(mx.array(p.astype(np.float32)), draft, numbers)
    n = int(np.array(acceptance.num_accepted))
    emitted = np.array(acceptance.token_ids)[: n + 1].tolist()
    return n, emitted, int(np.array(acceptance.num_underflows))


@pytest.mark.parametrize("one_hot", MIXED)
def test_outcomes_are_those_of_the_reference(one_hot: tuple[int, ...]) -> None:
    """For random numbers the accepted count and the token after it are the float64 algorithm's."""
    rng = np.random.default_rng(len(one_hot))
    for trial in range(30):
        vocab_size, num_draft = int(rng.integers(2, 6)), int(rng.integers(1, 5))
        options = drafts(Tree(vocab_size, trial, one_hot), num_draft)
        draft, _, p, q = options[rng.integers(len(options))]
        accept, choose = rng.random(num_draft), rng.random((num_draft + 1, 2))
        _, passes, left = decisions(p, q, draft)
        n = max([0, *(np.flatnonzero(accept < passes) + 1)])
        running = np.cumsum(left[n])
        token = int(np.argmax(running > choose[n, 1] * running[-1]))
        hot = tuple(i for i in one_hot if i < num_draft)
        support = rng.permutation(vocab_size).tolist() if trial % 2 else None
        found = run(verify_block, p, made(draft, q, hot, support), accept, choose)
        assert found == (n, [*draft[:n], token], 0)


@pytest.mark.parametrize("size", TREES)
def test_more_is_accepted_than_token_by_token(size: tuple[int, int]) -> None:
    """The expected count is the sum of E[P_i]: on each tree at least rejection's, on some more."""
    vocab_size, num_draft = size
    gains = []
    for seed in range(6):
        block = closed_form = token_by_token = 0.0
        for draft, probability, p, q in drafts(Tree(vocab_size, seed), num_draft):
            law = outcomes(p, q, draft).sum(axis=1)
            block += probability * float(law @ np.arange(num_draft + 1))
            closed_form += probability * float(decisions(p, q, draft)[0][1:].sum())
            ratios = np.minimum(1, [p[i, x] / q[i, x] for i, x in enumerate(draft)])
            token_by_token += probability * float(np.cumprod(ratios).sum())
        assert block == pytest.approx(closed_form, abs=1e-12)
        gains.append(block - token_by_token)
    assert min(gains) > -1e-12
    assert max(gains) > 1e-3


@pytest.mark.parametrize("one_hot", [(), (0, 1, 2)])
def test_what_rejection_decides_is_decided_like_it(one_hot: tuple[int, ...]) -> None:
    """One drafted token, and one-hot drafts of any length, give the same outcome bit for bit."""
    rng = np.random.default_rng(9)
    for trial in range(40):
        num_draft = 3 if one_hot else 1
        options = drafts(Tree(4, trial, one_hot), num_draft)
        draft, _, p, q = options[rng.integers(len(options))]
        numbers = rng.random(num_draft), rng.random((num_draft + 1, 2))
        record = made(draft, q, one_hot)
        assert run(verify_block, p, record, *numbers) == run(verify, p, record, *numbers)


@pytest.mark.parametrize("u", [0.0, 0.5, LARGEST])
def test_equal_distributions_accept_everything(u: float) -> None:
    """With p = q the whole draft is kept, whatever the numbers, though no residual has any mass."""
    for seed in range(20):
        q = np.random.default_rng(seed).dirichlet(np.ones(300), size=4)
        draft = tuple(q.argmax(axis=1)[:3].tolist())
        found = run(verify_block, q, made(draft, q[:3], ()), np.full(3, u), np.full((4, 2), 0.5))
        assert found[0] == 3


@pytest.mark.parametrize("u", [0.0, 0.5, LARGEST])
def test_disjoint_distributions_accept_nothing(u: float) -> None:
    """Where p and q share no token none is kept, and the target's own follows."""
    p = np.array([[0, 0, 0.5, 0.5]] * 3)
    q = np.array([[0.5, 0.5, 0, 0]] * 2)
    found = run(verify_block, p, made((0, 1), q, ()), np.full(2, u), np.zeros((3, 2)))
    assert found == (0, [2], 0)


def test_a_residual_without_mass_falls_back_to_p_and_is_counted() -> None:
    """Where rounding leaves P p nowhere above q, what follows is drawn from p itself."""
    q = np.array([[0.5, 0.5, 0.0]] * 3)
    p = q * np.array([[1 - 2**-20], [1 - 2**-20], [1]])
    draft, half = made((0, 0), q[:2], ()), np.full((3, 2), 0.75)
    assert run(verify_block, p, draft, np.array([LARGEST, LARGEST]), half) == (0, [1], 1)
    assert run(verify_block, p, draft, np.array([LARGEST, 0.5]), half) == (2, [0, 0, 1], 0)


def test_a_tiny_q_overflows_nothing() -> None:
    """The ratio of p to the smallest of q's numbers is 1 and not infinite, that of 0 is 0."""
    tiny = float(np.float32(1e-38))
    q, draft = np.array([[tiny, 1.0], [tiny, 1.0], [0.5, 0.5]]), (0, 0, 0)
    for p_drawn, expected in ((0.5, 3), (0.0, 0)):
        p = np.array([[p_drawn, 1 - p_drawn], [0.5, 0.5], [0.5, 0.5], [1.0, 0.0]])
        n, emitted, _ = run(verify_block, p, made(draft, q, ()), np.full(3, 0.5), np.zeros((4, 2)))
        assert n == expected
        assert emitted[-1] == (0 if n == 3 else 1)


def test_it_reads_nothing_to_the_host() -> None:
    """It can be traced, which a host read would stop, and traced lanes equal single calls."""
    rng = np.random.default_rng(6)
    p, q = (rng.dirichlet(np.ones(8), size=(20, n)).astype(np.float32) for n in (4, 2))
    token_ids = mx.array(rng.integers(8, size=(20, 3)).astype(np.int32))
    accept = mx.array(rng.random((20, 3)).astype(np.float32))
    choose = mx.array(rng.random((20, 4, 2)).astype(np.float32))

    def lane(p: mx.array, t: mx.array, q: mx.array, a: mx.array, c: mx.array) -> list[mx.array]:
        acceptance = verify_block(p, Draft(t, q, sampled=(0, 2)), Uniforms(a, c))
        return [acceptance.num_accepted, acceptance.token_ids, acceptance.num_underflows]

    arrays = [mx.array(p), token_ids, mx.array(q), accept, choose]
    traced = mx.vmap(lane)(*arrays)
    for i in range(20):
        alone = lane(*(array[i] for array in arrays))
        assert all(mx.array_equal(a, t[i]) for a, t in zip(alone, traced, strict=True))
