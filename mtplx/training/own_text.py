"""Text that the trunk writes itself, many conversations at a time, with its hidden states.

All rows of a batch start at position 0 and advance together; what a row has to say that the
trunk does not choose (template, user messages) is forced, token by token, so no padding and no
masks are needed. The hidden states come with the text: no second pass is needed to train on it.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mtplx.errors import TrainingError
from mtplx.models.llama import LlamaTarget
from mtplx.training.prompts import Prompt

SEGMENT = 256  # columns per segment of the two-level draw

Ints = npt.NDArray[np.int32]
Halves = npt.NDArray[np.float16]
Advance = Callable[[Ints], tuple[Halves, Ints]]
"""Reads the next block [B, T]; gives hidden states [B, T, D] and a token [B] drawn behind it."""
Writer = Callable[[Sequence[float], int], Advance]
"""Begins rows at these temperatures, which ascend, with a seed.

A block after the first is one token wide.
"""


@dataclass(frozen=True, slots=True)
class Framing:
    """A chat template taken apart: token ids around a user message and its reply.

    Where there is nothing between two messages, the token that ended the first stays.
    """

    before_user: tuple[int, ...]  # from the start of the conversation
    before_reply: tuple[int, ...]  # from the end of the message, its end token first
    after_reply: tuple[int, ...]  # from the end of the reply to the next message
    end_ids: frozenset[int]  # tokens that end a message


@dataclass(frozen=True, slots=True)
class Passage:
    """token_ids: [T] int32; hidden: [T, D] float16 after the final norm; kind: chat, code, …"""

    token_ids: Ints
    hidden: Halves
    kind: str


@dataclass(slots=True)
class Row:
    """One conversation in the making."""

    prompts: Iterator[tuple[Prompt, list[int]]]
    framing: Framing
    kind: str = ""
    forced: deque[int] = field(default_factory=deque)
    writing_user: bool = False

    def begin(self) -> int:
        """The first token."""
        self.forced.extend(self.framing.before_user)
        self._ask()
        return self.forced.popleft()

    def _ask(self) -> None:
        prompt, token_ids = next(self.prompts)
        self.kind = self.kind or prompt.kind
        self.forced.extend(token_ids)
        self.writing_user = prompt.open
        if not prompt.open:
            self.forced.extend(self.framing.before_reply)

    def advance(self, sampled: int) -> int:
        """The next token: a forced one, or the trunk's own, which may end a message."""
        if self.forced:
            return self.forced.popleft()
        if sampled not in self.framing.end_ids:
            return sampled
        if self.writing_user:
            self.writing_user = False
            self.forced.extend(self.framing.before_reply or (sampled,))
        else:
            self.forced.extend(self.framing.after_reply or (sampled,))
            self._ask()
        return self.forced.popleft()


def mlx_writer(target: LlamaTarget) -> Writer:
    """Writes with the trunk itself."""

    def start(temperatures: Sequence[float], seed: int) -> Advance:
        key = mx.random.key(seed)
        cache = target.make_cache()

        def advance(block: Ints) -> tuple[Halves, Ints]:
            nonlocal key
            state = target.normalise(target.forward_batch(mx.array(block), cache))
            key, draw_key = mx.random.split(key)
            sampled = sample_rows(target.logits(state[:, -1]), temperatures, draw_key)
            halves = state.astype(mx.float16)
            mx.eval(sampled, halves)
            return np.array(halves), np.array(sampled)

        return advance

    return start


def write_conversations(
    writer: Writer,
    framing: Framing,
    prompts: Iterator[tuple[Prompt, list[int]]],
    *,
    temperatures: Sequence[float],
    length: int,
    seed: int,
    tick: Callable[[int], None] = lambda num_tokens: None,
) -> list[Passage]:
    """A conversation of `length` tokens at each of `temperatures`, which must ascend.

    tick: told how many positions were done, most often one, `length` in all. Raises TrainingError
    for hidden states that float16 cannot hold, ValueError for temperatures that fall.
    """
    if any(a > b for a, b in pairwise(temperatures)):
        raise ValueError(f"temperatures must ascend: {list(temperatures)}")
    rows = [Row(prompts, framing) for _ in temperatures]
    advance = writer(temperatures, seed)
    block, done = _opening(rows)[:, :length], 0
    blocks, states = [], []
    while done < length:
        hidden, sampled = advance(block)
        blocks.append(block)
        states.append(_checked(hidden))
        done += block.shape[1]
        tick(block.shape[1])
        following = zip(rows, sampled.tolist(), strict=True)
        block = np.array([[row.advance(token_id)] for row, token_id in following], np.int32)
    token_ids, hidden = np.concatenate(blocks, axis=1), np.concatenate(states, axis=1)
    return [Passage(token_ids[i], hidden[i], row.kind) for i, row in enumerate(rows)]


def _opening(rows: Sequence[Row]) -> Ints:
    """[B, n]: as many tokens as every row begins with before the trunk has a say."""
    firsts = [row.begin() for row in rows]
    count = min(len(row.forced) for row in rows)
    tokens = [
        [first, *(row.forced.popleft() for _ in range(count))]
        for first, row in zip(firsts, rows, strict=True)
    ]
    return np.array(tokens, np.int32)


def _checked(hidden: Halves) -> Halves:
    if not np.isfinite(hidden).all():
        raise TrainingError(
            "The model's hidden states are not numbers, or too large for float16, so no head can "
            "be trained for it."
        )
    return hidden


def mixed_temperatures(num_rows: int) -> list[float]:
    """Two fifths of the rows greedy, two fifths at 0.7, the rest at 1."""
    mix = (0.0, 0.0, 0.7, 0.7, 1.0)
    return [mix[i * len(mix) // num_rows] for i in range(num_rows)]


def write_replies(
    target: LlamaTarget,
    framing: Framing,
    prompts: Sequence[tuple[str, list[int]]],
    *,
    temperature: float,
    num_tokens: int,
    seed: int,
) -> list[tuple[Passage, int]]:
    """One reply of up to `num_tokens` to each (kind, message); with the row where it starts."""
    around = len(framing.before_user) + len(framing.before_reply)
    starts = [around + len(token_ids) for _, token_ids in prompts]
    asked = [(Prompt(kind, ""), token_ids) for kind, token_ids in prompts]
    passages = write_conversations(
        mlx_writer(target),
        framing,
        itertools.chain(asked, itertools.repeat(asked[0])),
        temperatures=[temperature] * len(asked),
        length=max(starts) + num_tokens,
        seed=seed,
    )
    return [_reply(*pair, num_tokens, framing) for pair in zip(passages, starts, strict=True)]


def _reply(passage: Passage, start: int, num_tokens: int, framing: Framing) -> tuple[Passage, int]:
    """The passage up to the end of its first reply, and the last row of the prompt."""
    token_ids = passage.token_ids[: start + num_tokens]
    ends = [i for i in range(start, len(token_ids)) if token_ids[i] in framing.end_ids]
    length = ends[0] + 1 if ends else len(token_ids)
    return Passage(token_ids[:length], passage.hidden[:length], passage.kind), start - 1


def sample_rows(logits: mx.array, temperatures: Sequence[float], key: mx.array) -> mx.array:
    """One token per row of logits [B, V], greedy rows first: [B] int32."""
    num_greedy = sum(t == 0 for t in temperatures)
    parts = []
    if num_greedy:
        parts.append(mx.argmax(logits[:num_greedy], axis=-1))
    if num_greedy < len(temperatures):
        divisor = mx.array(list(temperatures[num_greedy:]))[:, None]
        weights = mx.softmax(logits[num_greedy:] / divisor, axis=-1)
        parts.append(_draw(weights, key))
    return mx.concatenate(parts).astype(mx.int32)


def _draw(weights: mx.array, key: mx.array) -> mx.array:
    """One column per row of weights [B, V]: a segment first, then a column within it."""
    num_rows, num_columns = weights.shape
    padded = mx.pad(weights, [(0, 0), (0, -num_columns % SEGMENT)])
    segments = padded.reshape(num_rows, -1, SEGMENT)
    u = mx.random.uniform(shape=(num_rows, 2), key=key)
    segment = _pick(segments.sum(axis=-1), u[:, 0])
    inside = mx.take_along_axis(segments, segment[:, None, None], axis=1)[:, 0]
    return segment * SEGMENT + _pick(inside, u[:, 1])


def _pick(weights: mx.array, u: mx.array) -> mx.array:
    """Inverse CDF per row of weights [B, S]."""
    cumulative = mx.cumsum(weights, axis=-1)
    below = cumulative <= u[:, None] * cumulative[:, -1:]
    return mx.minimum(below.sum(axis=-1), weights.shape[1] - 1)


def read_texts(target: LlamaTarget, windows: Sequence[Sequence[int]], kind: str) -> list[Passage]:
    """Hidden states of given windows of token ids, all of one length, in one pass."""
    token_ids = mx.array([list(window) for window in windows])
    state = target.normalise(target.forward_batch(token_ids, target.make_cache()))
    halves = _checked(np.array(state.astype(mx.float16)))
    ids = np.array(token_ids, dtype=np.int32)
    return [Passage(ids[i], halves[i], kind) for i in range(len(windows))]
