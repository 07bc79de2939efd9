"""The trunk in PyTorch against the one that is served, and the text it writes."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from scipy.stats import chisquare

from mtplx.errors import TrainingError
from mtplx.models.llama import LlamaDims, LlamaTarget
from mtplx.models.matrix import AffineMatrix
from mtplx.training.own_text import (
    Framing,
    Passage,
    Writer,
    mlx_writer,
    read_texts,
    write_conversations,
)
from mtplx.training.prompts import Prompt
from mtplx.training.torch_trunk import (
    ROOM,
    Dtype,
    TorchCache,
    read_block,
    sample_rows,
    torch_trunk,
    torch_writer,
)
from tests.tiny import DIMS, random_prompt, tiny_target

torch = pytest.importorskip("torch")
SHAPES = (
    DIMS,
    replace(DIMS, num_heads=6, num_kv_heads=2, head_dim=6, rope_base=500.0, num_layers=3),
    replace(DIMS, num_heads=3, num_kv_heads=3),
    replace(DIMS, num_kv_heads=1, norm_eps=1e-2),
)
FRAMING = Framing((60, 61), (3, 62), (3, 61), frozenset(range(10)))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads do nothing for products of this size but wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tied(target: LlamaTarget) -> LlamaTarget:
    return replace(target, lm_head=target.embedding)


def written(
    writer: Writer, seed: int = 0, temperatures: Sequence[float] = (0.0, 0.0, 0.7, 1.0)
) -> list[Passage]:
    """Conversations that go beyond the first room of the caches."""
    asked = ((Prompt("chat", ""), random_prompt(n % 7 + 3, n)) for n in range(999))
    return write_conversations(
        writer, FRAMING, asked, temperatures=temperatures, length=ROOM + 6, seed=seed
    )


@pytest.mark.parametrize("dims", SHAPES)
@pytest.mark.parametrize("first", [1, 5, ROOM, ROOM + 1])
def test_logits_are_those_of_the_trunk(dims: LlamaDims, first: int) -> None:
    """In float32, row by row behind a first block of any size, past the bounds of the caches."""
    target = tiny_target(dims=dims)
    length = 2 * ROOM + 3
    tokens = np.array([random_prompt(length, seed) for seed in range(3)])
    trunk, cache = torch_trunk(target, "float32"), list[TorchCache]()
    hidden = [read_block(trunk, torch.from_numpy(tokens[:, :first]), cache, 0)]
    hidden += [
        read_block(trunk, torch.from_numpy(tokens[:, row : row + 1]), cache, row)
        for row in range(first, length)
    ]
    found = torch.cat(hidden, dim=1) @ trunk.lm_head.T
    state = target.normalise(target.forward_batch(mx.array(tokens), target.make_cache()))
    np.testing.assert_allclose(found, np.array(target.logits(state)), rtol=1e-3, atol=1e-3)


def test_a_tied_output_matrix_is_held_once() -> None:
    """It is the embedding, and an untied one is its own."""
    one, two = torch_trunk(tied(tiny_target())), torch_trunk(tiny_target())
    assert one.lm_head is one.embedding
    assert not torch.equal(two.lm_head, two.embedding)


def test_packed_weights_are_expanded() -> None:
    """A trunk whose embedding is quantised gives the same as its dense twin."""
    target = tiny_target()
    codes, scales, biases = mx.quantize(target.embedding.rows(mx.arange(64)), 32, 8)
    packed = AffineMatrix(codes, scales, biases, 8)
    found = torch_trunk(replace(target, embedding=packed), "float32").embedding
    np.testing.assert_array_equal(found, np.array(packed.dense().weight))


def test_greedy_rows_are_what_the_trunk_says() -> None:
    """In float32 PyTorch and MLX write the same greedy text."""
    target = tied(tiny_target(dims=SHAPES[1]))
    expected, found = (
        written(writer, temperatures=[0.0, 0.0])
        for writer in (mlx_writer(target), torch_writer(target, "float32"))
    )
    for one, other in zip(expected, found, strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 2e-3), ("bfloat16", 0.05)])
def test_hidden_states_are_those_of_the_text(dtype: Dtype, bound: float) -> None:
    """What is stored at a row is the trunk's state there; in bfloat16 to 5 %."""
    target = tiny_target()
    for passage in written(torch_writer(target, dtype)):
        (again,) = read_texts(target, [passage.token_ids.tolist()], "")
        gap = np.linalg.norm(passage.hidden.astype(np.float32) - again.hidden.astype(np.float32))
        assert gap < bound * np.linalg.norm(again.hidden.astype(np.float32))


def test_the_same_seed_writes_the_same_text() -> None:
    """Bit for bit, whatever was drawn before; another seed writes another text."""
    writer = torch_writer(tiny_target())
    one, other = written(writer, 1), written(writer, 2)
    torch.rand(3)
    again = written(writer, 1)
    for first, second in zip(one, again, strict=True):
        assert np.array_equal(first.token_ids, second.token_ids)
        assert np.array_equal(first.hidden, second.hidden)
    assert any(
        not np.array_equal(a.token_ids, b.token_ids) for a, b in zip(one, other, strict=True)
    )


def test_states_that_are_not_numbers_are_an_error() -> None:
    """A trunk that overflows half precision is refused, as it is with MLX."""
    huge = replace(tiny_target(), final_norm=mx.full((32,), 1e9))
    with pytest.raises(TrainingError, match="too large for float16"):
        written(torch_writer(huge))


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_rows_are_drawn_from_the_softmax(temperature: float) -> None:
    """20,000 draws over a vocabulary of several segments pass a chi-square test."""
    rng = np.random.default_rng(3)
    logits = rng.normal(size=700) * 2
    weights = np.exp((logits - logits.max()) / temperature)
    expected = 20_000 * weights / weights.sum()
    tiled = torch.tensor(np.tile(logits.astype(np.float32), (20_000, 1)))
    drawn = sample_rows(tiled, [temperature] * 20_000, torch.Generator().manual_seed(4))
    counts = np.bincount(drawn, minlength=700)
    often = expected >= 5
    observed = [*counts[often], counts[~often].sum()]
    assert chisquare(observed, [*expected[often], expected[~often].sum()]).pvalue > 1e-3


def test_tokens_without_weight_are_never_drawn() -> None:
    """Neither at the start, nor across whole segments, nor in the padding at the end."""
    logits = torch.full((4000, 600), -torch.inf)
    logits[:, [3, 255, 599]] = 0.0
    drawn = sample_rows(logits, [1.0] * 4000, torch.Generator().manual_seed(0))
    assert set(drawn.tolist()) == {3, 255, 599}


def test_greedy_rows_come_first() -> None:
    """Rows at temperature 0 are the likeliest tokens, however many there are."""
    logits = torch.tensor(np.random.default_rng(0).normal(size=(6, 64)).astype(np.float32))
    for num_greedy in range(7):
        temperatures = [0.0] * num_greedy + [1.0] * (6 - num_greedy)
        drawn = sample_rows(logits, temperatures, torch.Generator().manual_seed(1))
        assert len(drawn) == 6
        assert drawn[:num_greedy].tolist() == logits.argmax(dim=-1)[:num_greedy].tolist()
