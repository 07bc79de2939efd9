"""The text that the trunk writes: what is forced, what is its own, and how it is drawn."""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from scipy.stats import chisquare

from mtplx.errors import TrainingError
from mtplx.params import SamplingParams
from mtplx.training import own_text
from mtplx.training.own_text import (
    Framing,
    Row,
    mixed_temperatures,
    mlx_writer,
    read_texts,
    sample_rows,
    write_conversations,
    write_replies,
)
from mtplx.training.prompts import Prompt
from tests.tiny import GREEDY, plain, random_prompt, tiny_target

TARGET = tiny_target()
ENDS = frozenset(range(10))
FRAMING = Framing(before_user=(60, 61), before_reply=(3, 62), after_reply=(3, 61), end_ids=ENDS)
BARE = Framing((), (), (), ENDS)
Asked = tuple[Prompt, list[int]]


def asked(*messages: Sequence[int], is_open: bool = False) -> Iterator[Asked]:
    return ((Prompt("chat", "", open=is_open), list(message)) for message in messages)


def driven(row: Row, sampled: Sequence[int]) -> list[int]:
    """What a row says when the trunk would say `sampled`, one after the other."""
    return [row.begin(), *(row.advance(token_id) for token_id in sampled)]


def test_a_row_says_what_it_is_given_until_the_reply() -> None:
    """While the template and the message go on, what the trunk would say is not heard."""
    row = Row(asked([11, 12]), FRAMING)
    assert driven(row, [50] * 5) == [60, 61, 11, 12, 3, 62]


def test_a_row_says_what_the_trunk_says_in_its_reply() -> None:
    """After the last forced token every token is the trunk's own."""
    row = Row(asked([11]), FRAMING)
    assert driven(row, [50, 50, 50, 50, 20, 21, 22])[5:] == [20, 21, 22]


def test_the_end_of_a_reply_is_followed_by_the_next_message() -> None:
    """The template's own end token stands in for whichever one the trunk chose."""
    row = Row(asked([11], [12, 13]), FRAMING)
    said = driven(row, [50, 50, 50, 50, 20, 7, *[50] * 5, 21])
    assert said[5:] == [20, 3, 61, 12, 13, 3, 62, 21]


def test_an_open_message_is_the_trunks_until_it_ends_it() -> None:
    """The trunk goes on with the message, ends it, and then answers it."""
    row = Row(asked([11], is_open=True), FRAMING)
    said = driven(row, [50, 50, 20, 21, 9, 50, 30, 31])
    assert said == [60, 61, 11, 20, 21, 3, 62, 30, 31]


def test_a_row_is_of_the_kind_of_its_first_message() -> None:
    """Later messages do not change what a conversation counts as."""
    messages = iter([(Prompt("code", ""), [11]), (Prompt("chat", ""), [12])])
    row = Row(messages, FRAMING)
    driven(row, [50, 50, 50, 50, 7, 50])
    assert row.kind == "code"


@pytest.mark.parametrize("is_open", [False, True])
def test_without_a_template_the_end_token_stands_between_messages(is_open: bool) -> None:
    """Bare text goes on after its end, and the end is there to be seen."""
    row = Row(asked([11], [12], is_open=is_open), BARE)
    said = driven(row, [20, 7, 21, 22])
    assert said == ([11, 20, 7, 21, 22] if is_open else [11, 20, 7, 12, 22])


def test_a_greedy_conversation_is_what_decoding_says() -> None:
    """Every reply of a greedy row is the plain greedy decoding of all that stands before it."""
    messages = [random_prompt(n, seed=n) for n in (4, 9, 3, 6, 5, 8, 7, 4, 3, 5, 6)]
    (written,) = write_conversations(
        mlx_writer(TARGET), FRAMING, asked(*messages), temperatures=[0.0], length=110, seed=0
    )
    expected: list[int] = [*FRAMING.before_user]
    num_replies = 0
    for message in messages:
        expected += [*message, *FRAMING.before_reply]
        left = 110 - len(expected)
        if left <= 0:
            break
        params = replace(GREEDY, max_tokens=left)
        reply = plain(TARGET, expected, params, stop_ids=sorted(ENDS))
        num_replies += 1
        ended = reply[-1] in ENDS
        expected += [*reply[:-1], *FRAMING.after_reply] if ended else reply
    assert num_replies >= 3
    assert written.token_ids.tolist() == expected[:110]


def test_greedy_rows_side_by_side_are_each_what_decoding_says() -> None:
    """Rows do not disturb each other."""
    messages = [random_prompt(n, seed=n) for n in (4, 9, 6)]
    endless = replace(FRAMING, end_ids=frozenset())
    rows = write_conversations(
        mlx_writer(TARGET),
        endless,
        asked(*messages),
        temperatures=[0.0, 0.0, 0.0],
        length=40,
        seed=0,
    )
    for message, row in zip(messages, rows, strict=True):
        prompt = [*FRAMING.before_user, *message, *FRAMING.before_reply]
        reply = plain(TARGET, prompt, SamplingParams(temperature=0, max_tokens=40 - len(prompt)))
        assert row.token_ids.tolist() == prompt + reply


def test_hidden_states_are_those_of_the_text() -> None:
    """What is stored at a row is the trunk's state there, to half precision, at any temperature."""
    rows = write_conversations(
        mlx_writer(TARGET),
        FRAMING,
        asked(*([random_prompt(5, seed=n) for n in range(60)])),
        temperatures=[0.0, 0.7, 1.0],
        length=64,
        seed=1,
    )
    (fresh,) = zip(*(read_texts(TARGET, [row.token_ids.tolist()], "") for row in rows), strict=True)
    for row, again in zip(rows, fresh, strict=True):
        np.testing.assert_allclose(row.hidden, again.hidden, rtol=2e-3, atol=2e-3)


def test_hidden_states_have_been_through_the_final_norm() -> None:
    """The trunk's output matrix turns them into the logits it decodes with."""
    token_ids = random_prompt(12)
    (passage,) = read_texts(TARGET, [token_ids], "")
    logits = TARGET.logits(mx.array(passage.hidden[-1:]).astype(mx.float32))
    assert mx.argmax(logits).item() == plain(TARGET, token_ids, replace(GREEDY, max_tokens=1))[0]


def test_the_same_seed_writes_the_same_text() -> None:
    """A chunk can be made again; another seed makes another one."""

    def written(seed: int) -> list[list[int]]:
        rows = write_conversations(
            mlx_writer(TARGET),
            FRAMING,
            asked(*[[11]] * 99),
            temperatures=[1.0] * 3,
            length=30,
            seed=seed,
        )
        return [row.token_ids.tolist() for row in rows]

    assert written(1) == written(1)
    assert written(1) != written(2)
    assert len({tuple(row) for row in written(1)}) == 3


@pytest.mark.parametrize("length", [2, 7, 12])
def test_each_position_is_told_of(length: int) -> None:
    """Whoever waits for a chunk can see how far it is, also in what every row begins with."""
    told: list[int] = []
    write_conversations(
        mlx_writer(TARGET),
        FRAMING,
        asked([11], *[[12, 13]] * 9),
        temperatures=[0.0, 0.0],
        length=length,
        seed=0,
        tick=told.append,
    )
    assert sum(told) == length
    assert told[0] == min(length, 5)  # the shorter message and what stands around it
    assert set(told[1:]) <= {1}


def test_temperatures_that_fall_are_refused() -> None:
    """Rows are drawn in blocks, so an order that would exchange them must not pass."""
    with pytest.raises(ValueError, match="must ascend"):
        write_conversations(
            mlx_writer(TARGET), FRAMING, asked([11]), temperatures=[0.7, 0.0], length=4, seed=0
        )


def test_states_that_are_not_numbers_are_an_error() -> None:
    """A trunk that overflows half precision is refused instead of stored."""
    huge = replace(TARGET, final_norm=TARGET.final_norm * 1e9)
    with pytest.raises(TrainingError, match="too large for float16"):
        write_conversations(
            mlx_writer(huge), FRAMING, asked([11]), temperatures=[0.0], length=4, seed=0
        )
    with pytest.raises(TrainingError, match="too large for float16"):
        read_texts(huge, [[1, 2, 3]], "text")


def test_a_reply_ends_with_its_first_end_token() -> None:
    """Of a conversation only the first reply is kept, its end token and its prompt included."""
    messages = [("chat", random_prompt(n, seed=n)) for n in (5, 11)]
    replies = write_replies(TARGET, FRAMING, messages, temperature=0.0, num_tokens=20, seed=0)
    for (_, message), (passage, last_of_prompt) in zip(messages, replies, strict=True):
        prompt = [*FRAMING.before_user, *message, *FRAMING.before_reply]
        assert last_of_prompt == len(prompt) - 1
        params = replace(GREEDY, max_tokens=20)
        reply = plain(TARGET, prompt, params, stop_ids=sorted(ENDS))
        if reply[-1] in ENDS:
            reply[-1] = FRAMING.after_reply[0]
        assert passage.token_ids.tolist() == prompt + reply
        assert len(passage.hidden) == len(passage.token_ids)


def test_two_fifths_greedy_two_fifths_warm_and_the_rest_hot() -> None:
    """The mixture ascends, as writing needs it, and has its shares."""
    for num_rows in range(1, 70):
        mixture = mixed_temperatures(num_rows)
        assert len(mixture) == num_rows
        assert mixture == sorted(mixture)
        counts = Counter(mixture)
        assert abs(counts[0.0] - 0.4 * num_rows) < 1
        assert abs(counts[0.7] - 0.4 * num_rows) < 1


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_rows_are_drawn_from_the_softmax(temperature: float) -> None:
    """20,000 draws over a vocabulary of several segments pass a chi-square test."""
    num_draws, vocab_size = 20_000, 700
    rng = np.random.default_rng(3)
    logits = rng.normal(size=vocab_size) * 2
    weights = np.exp((logits - logits.max()) / temperature)
    expected = num_draws * weights / weights.sum()
    tiled = mx.array(np.tile(logits.astype(np.float32), (num_draws // 10, 1)))
    counts = np.zeros(vocab_size)
    for seed in range(10):
        drawn = sample_rows(tiled, [temperature] * len(tiled), mx.random.key(seed))
        counts += np.bincount(np.array(drawn), minlength=vocab_size)
    often = expected >= 5
    observed = [*counts[often], counts[~often].sum()]
    assert chisquare(observed, [*expected[often], expected[~often].sum()]).pvalue > 1e-3


def test_tokens_without_weight_are_never_drawn() -> None:
    """Neither at the start, nor across whole segments, nor in the padding at the end."""
    logits = np.full((4000, 600), -np.inf, np.float32)
    logits[:, [3, 255, 599]] = 0.0
    drawn = sample_rows(mx.array(logits), [1.0] * 4000, mx.random.key(0))
    assert set(np.array(drawn).tolist()) == {3, 255, 599}


def test_the_ends_of_the_interval_draw_tokens_with_weight() -> None:
    """A random number of 0, and the last one below 1, pick neither padding nor nothing."""
    weights = mx.array([[0.0, 0.0, 0.3, 0.0, 0.7, 0.0, 0.0]] * 2)
    ends = mx.array([0.0, float(np.nextafter(np.float32(1), np.float32(0)))])
    assert own_text._pick(weights, ends).tolist() == [2, 4]


def test_greedy_rows_are_the_likeliest_tokens_beside_drawn_ones() -> None:
    """Rows at temperature 0 come first and are not drawn."""
    logits = mx.array(np.random.default_rng(0).normal(size=(6, 64)).astype(np.float32))
    for seed, num_greedy in itertools.product(range(5), range(7)):
        temperatures = [0.0] * num_greedy + [1.0] * (6 - num_greedy)
        drawn = sample_rows(logits, temperatures, mx.random.key(seed))
        best = mx.argmax(logits, axis=-1)
        assert drawn[:num_greedy].tolist() == best[:num_greedy].tolist()
