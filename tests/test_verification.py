from fractions import Fraction
from itertools import product

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from mtplx.sampling import draw
from mtplx.speculation import Acceptance, Draft, Uniforms
from mtplx.verification import LAWS, verify

Floats = NDArray[np.float32]

LARGEST = 1 - 2**-24


def uniforms(accept: list[float], choose: float | list[list[float]] = 0.5) -> Uniforms:
    pairs = choose if isinstance(choose, list) else [[choose, choose]] * (len(accept) + 1)
    return Uniforms(mx.array(accept, dtype=mx.float32), mx.array(pairs, dtype=mx.float32))


def drafted(
    token_ids: list[int], q: Floats | None = None, support: list[int] | None = None
) -> Draft:
    return Draft(
        mx.array(token_ids, dtype=mx.int32),
        None if q is None else mx.array(q),
        None if support is None else mx.array(support, dtype=mx.int32),
    )


def outcome(acceptance: Acceptance) -> tuple[int, list[int], int]:
    """The accepted count, the emitted tokens and the underflows."""
    num_accepted = int(np.array(acceptance.num_accepted))
    token_ids = np.array(acceptance.token_ids)[: num_accepted + 1]
    return num_accepted, token_ids.tolist(), int(np.array(acceptance.num_underflows))


def sixteenths(rng: np.random.Generator, *shape: int) -> Floats:
    """Distributions whose numbers float32 multiplies, subtracts and adds without rounding."""
    counts = rng.multinomial(16, rng.dirichlet(np.ones(shape[-1]), size=shape[:-1]))
    return (counts / 16).astype(np.float32)


def by_hand(p: Floats, token_ids: list[int], q: Floats, u: list[float], v: float) -> list[int]:
    """The emitted tokens, by the papers' algorithm in exact arithmetic."""
    emitted: list[int] = []
    weights = [Fraction(float(x)) for x in p[-1]]
    for i, token_id in enumerate(token_ids):
        p_i, q_i = ([Fraction(float(x)) for x in row] for row in (p[i], q[i]))
        if Fraction(u[i]) * q_i[token_id] >= p_i[token_id]:
            weights = [max(a - b, Fraction(0)) for a, b in zip(p_i, q_i, strict=True)]
            break
        emitted.append(token_id)
    running = Fraction(0)
    for token_id, weight in enumerate(weights):
        running += weight
        if running > Fraction(v) * sum(weights):
            return [*emitted, token_id]
    raise AssertionError("no token has any weight")


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("num_draft", [1, 2, 4])
def test_outcomes_are_those_of_the_algorithm_done_by_hand(num_draft: int, one_hot: bool) -> None:
    """On a grid of uniform numbers the emitted tokens equal the papers' algorithm, all of them."""
    rng = np.random.default_rng(num_draft)
    grid = (0.0, 2**-24, 0.25, 0.5, 0.8125, LARGEST)
    for vocab_size, _ in product((2, 3, 4), range(40)):
        p = sixteenths(rng, num_draft + 1, vocab_size)
        q = sixteenths(rng, num_draft, vocab_size)
        if one_hot:
            q = np.eye(vocab_size, dtype=np.float32)[q.argmax(axis=1)]
        token_ids = [int(rng.choice(np.flatnonzero(row))) for row in q]
        u, v = rng.choice(grid, size=num_draft).tolist(), float(rng.choice(grid))
        draft = drafted(token_ids, None if one_hot else q)
        num_accepted, emitted, num_underflows = outcome(verify(mx.array(p), draft, uniforms(u, v)))
        assert emitted == by_hand(p, token_ids, q, u, v)
        assert num_accepted == len(emitted) - 1
        assert num_underflows == 0


def test_a_forbidden_token_is_refused_even_at_zero() -> None:
    """u = 0 does not let through a token that the target gives no probability."""
    p = mx.array([[0.0, 1.0], [0.5, 0.5]])
    for draft in (drafted([0]), drafted([0], np.array([[0.5, 0.5]], dtype=np.float32))):
        assert outcome(verify(p, draft, uniforms([0.0]))) == (0, [1], 0)


def test_a_certain_token_is_accepted_at_the_largest_number() -> None:
    """A token that the target is sure of is kept whatever the uniform number."""
    p = mx.array([[0.0, 1.0], [0.5, 0.5]])
    assert outcome(verify(p, drafted([1]), uniforms([LARGEST])))[0] == 1


def test_equal_distributions_accept_everything() -> None:
    """With p = q each drafted token is kept, for every uniform number."""
    q = sixteenths(np.random.default_rng(0), 3, 8)
    p = mx.array(np.concatenate([q, q[:1]]))
    for u in (0.0, 0.5, LARGEST):
        assert outcome(verify(p, drafted(q.argmax(axis=1).tolist(), q), uniforms([u] * 3)))[0] == 3


def test_disjoint_distributions_accept_nothing() -> None:
    """Where p and q share no token the first one is refused, for every uniform number."""
    p = mx.array([[0.0, 0.0, 0.5, 0.5]] * 3)
    q = np.array([[0.5, 0.5, 0.0, 0.0]] * 2, dtype=np.float32)
    for u in (0.0, 0.5, LARGEST):
        assert outcome(verify(p, drafted([0, 1], q), uniforms([u] * 2, 0.0))) == (0, [2], 0)


def test_an_empty_draft_is_a_plain_draw() -> None:
    """Depth 0 draws from the one row with the numbers of its position."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        p = mx.array(sixteenths(rng, 1, 300))
        numbers = uniforms([], rng.random((1, 2)).tolist())
        expected = draw(p[0], numbers.choose[0]).item()
        assert outcome(verify(p, drafted([]), numbers)) == (0, [expected], 0)


def test_the_bonus_token_comes_from_the_last_row() -> None:
    """After K accepted tokens the next one is drawn from row K with that row's numbers."""
    p = mx.array([[1.0, 0, 0, 0], [0, 1.0, 0, 0], [0, 0, 0.5, 0.5]])
    for v, bonus in ((0.25, 2), (0.75, 3)):
        numbers = uniforms([0.5, 0.5], [[0.0, 0.0], [0.0, 0.0], [v, v]])
        assert outcome(verify(p, drafted([0, 1]), numbers)) == (2, [0, 1, bonus], 0)


def test_the_recovered_token_uses_the_numbers_of_its_position() -> None:
    """A token recovered at row i is chosen by the numbers that plain decoding would use there."""
    p = mx.array([[1.0, 0, 0, 0], [0, 0, 0.5, 0.5], [1.0, 0, 0, 0]])
    for v, recovered in ((0.25, 2), (0.75, 3)):
        numbers = uniforms([0.5, 0.5], [[0.5, 0.5], [v, v], [0.5, 0.5]])
        assert outcome(verify(p, drafted([0, 1]), numbers)) == (1, [0, recovered], 0)


@pytest.mark.parametrize("num_draft", [1, 3])
def test_a_one_hot_draft_is_a_sampled_one_whose_q_is_one_hot(num_draft: int) -> None:
    """Leaving the probabilities out or writing them out makes no difference."""
    rng = np.random.default_rng(3)
    for _ in range(50):
        p = mx.array(rng.dirichlet(np.ones(300), size=num_draft + 1).astype(np.float32))
        token_ids = np.array(p).argmax(axis=1)[:num_draft].tolist()
        numbers = uniforms(
            (rng.random(num_draft) / 50).tolist(), rng.random((num_draft + 1, 2)).tolist()
        )
        written_out = drafted(token_ids, np.eye(300, dtype=np.float32)[token_ids])
        expected = outcome(verify(p, written_out, numbers))
        assert outcome(verify(p, drafted(token_ids), numbers)) == expected


def test_a_shortlist_is_a_q_that_is_zero_elsewhere() -> None:
    """Probabilities over a support, in any order, act as the same q over the vocabulary."""
    rng = np.random.default_rng(4)
    for _ in range(50):
        support = rng.permutation(300)[:20]
        p = mx.array(rng.dirichlet(np.ones(300) / 10, size=4).astype(np.float32))
        q = rng.dirichlet(np.ones(20), size=3).astype(np.float32)
        token_ids = support[q.argmax(axis=1)].tolist()
        everywhere = np.zeros((3, 300), dtype=np.float32)
        everywhere[:, support] = q
        numbers = uniforms((rng.random(3) / 20).tolist(), rng.random((4, 2)).tolist())
        expected = outcome(verify(p, drafted(token_ids, everywhere), numbers))
        assert outcome(verify(p, drafted(token_ids, q, support.tolist()), numbers)) == expected


def test_a_residual_without_mass_falls_back_to_p_and_is_counted() -> None:
    """Where rounding leaves p nowhere above q, a refused token is replaced from p itself."""
    q = np.array([[0.5, 0.5, 0.0]], dtype=np.float32)
    p = mx.array(np.concatenate([q * np.float32(1 - 2**-20), q]))
    assert outcome(verify(p, drafted([0], q), uniforms([LARGEST], 0.75))) == (0, [1], 1)
    assert outcome(verify(p, drafted([0], q), uniforms([0.5], 0.75))) == (1, [0, 1], 0)


def test_verification_changes_none_of_its_inputs() -> None:
    """Probabilities, draft and random numbers are the same before and after."""
    rng = np.random.default_rng(5)
    p, q = mx.array(sixteenths(rng, 4, 32)), sixteenths(rng, 3, 20)
    support = rng.permutation(32)[:20].tolist()
    draft = drafted([support[int(row.argmax())] for row in q], q, support)
    numbers = uniforms([0.2, 0.9, 0.9])
    inputs = [p, draft.token_ids, draft.probs, draft.support, numbers.accept, numbers.choose]
    before = [np.array(x) for x in inputs]
    outcome(LAWS["rejection"](p, draft, numbers))
    assert all(np.array_equal(np.array(x), b) for x, b in zip(inputs, before, strict=True))


def test_token_ids_hold_a_place_for_every_row() -> None:
    """The shapes and types are those of the record, whatever was accepted."""
    p = mx.array(np.eye(4, dtype=np.float32))
    acceptance = verify(p, drafted([0, 3, 2]), uniforms([0.5] * 3))
    assert acceptance.token_ids.shape == (4,)
    assert acceptance.num_accepted.shape == acceptance.num_underflows.shape == ()
    for array in (acceptance.token_ids, acceptance.num_accepted, acceptance.num_underflows):
        assert array.dtype == mx.int32


def test_verification_reads_nothing_to_the_host() -> None:
    """It can be traced, which a host read would stop, and traced lanes equal single calls."""
    rng = np.random.default_rng(6)
    p = mx.array(sixteenths(rng, 20, 3, 8))
    q = sixteenths(rng, 20, 2, 8)
    token_ids = mx.array(q.argmax(axis=2).astype(np.int32))
    accept = mx.array(rng.random((20, 2)).astype(np.float32))
    choose = mx.array(rng.random((20, 3, 2)).astype(np.float32))

    def lane(p: mx.array, t: mx.array, q: mx.array, a: mx.array, c: mx.array) -> list[mx.array]:
        acceptance = verify(p, Draft(t, q), Uniforms(a, c))
        return [acceptance.num_accepted, acceptance.token_ids, acceptance.num_underflows]

    traced = mx.vmap(lane)(p, token_ids, mx.array(q), accept, choose)
    for i in range(20):
        alone = lane(p[i], token_ids[i], mx.array(q[i]), accept[i], choose[i])
        assert all(mx.array_equal(a, t[i]) for a, t in zip(alone, traced, strict=True))
