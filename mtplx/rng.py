"""Random numbers that are a pure function of (seed, position, purpose, step).

There is no generator and so no state to advance, save or roll back: a round that drafts nothing
uses nothing up, and a rejected draft leaves no trace. The hash is keyed BLAKE2b, computed on the
host in integers, so a seed gives the same numbers on every platform.

Why a decode never uses one number twice. A *round* starts at the absolute position of the first
token it samples, and every round emits at least one token, so no two rounds start at the same
position. DRAFT and ACCEPT numbers carry (round start, step within the round); TARGET numbers carry
the position of the token they choose, and exactly one token is ever chosen there, be it recovered,
bonus or plain. DRAFT and ACCEPT are tied to the round because a later round revisits positions
whose draft was thrown away: were its numbers looked up by position alone, whatever had watched the
discarded draft (a depth policy, say) would already know them.
"""

import hashlib
import os
import struct
from enum import Enum, unique

import mlx.core as mx

from mtplx.speculation import Uniforms

_WORDS = struct.Struct("<16I")  # 64 bytes, the longest BLAKE2b digest


@unique
class Purpose(Enum):
    """What a number decides. Numbers of different purposes are independent of each other."""

    TARGET = 1  # which token: recovered, bonus or plain
    ACCEPT = 2  # whether a drafted token is kept
    DRAFT = 3  # which token the drafter proposes


def fresh_seed() -> int:
    """A seed from the operating system's entropy, for requests that name none."""
    return int.from_bytes(os.urandom(8), "little")


def uniforms(
    seed: int, position: int, purpose: Purpose, count: int, *, step: int = 0
) -> list[float]:
    """`count` numbers in [0, 1), each a multiple of 2**-24.

    seed: 0 to 2**64 - 1. position, step: 0 or more. Asking for more numbers never changes the
    first ones.
    """
    key = seed.to_bytes(8, "little")
    message = b"".join(n.to_bytes(8, "little") for n in (position, step, purpose.value))
    words: list[int] = []
    while len(words) < count:
        counter = len(words).to_bytes(8, "little")
        digest = hashlib.blake2b(message + counter, key=key, person=b"mtplx.rng").digest()
        words.extend(_WORDS.unpack(digest))
    return [_fraction(word) for word in words[:count]]


def round_uniforms(seed: int, position: int, num_draft: int) -> Uniforms:
    """What a law needs to verify `num_draft` tokens.

    position: the absolute index of the first token that the round samples.
    """
    accept = [uniforms(seed, position, Purpose.ACCEPT, 1, step=i)[0] for i in range(num_draft)]
    choose = [uniforms(seed, position + i, Purpose.TARGET, 2) for i in range(num_draft + 1)]
    return Uniforms(mx.array(accept, dtype=mx.float32), mx.array(choose, dtype=mx.float32))


def draft_uniforms(seed: int, position: int, step: int) -> mx.array:
    """[2] float32 for drawing the draft token that stands `step` after the round's first position.

    position: the absolute index of the first token that the round samples, as in
        `round_uniforms`; not that of the drafted token.
    """
    return mx.array(uniforms(seed, position, Purpose.DRAFT, 2, step=step), dtype=mx.float32)


def _fraction(word: int) -> float:
    # The top 24 of 32 bits: float32 holds every such fraction exactly, so none rounds up to 1.
    return (word >> 8) / 2**24
