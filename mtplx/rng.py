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
discarded draft (a depth policy, say) would already know them. The coupled law uses NOISE and no
other: it belongs to the position, since there the drafter is meant to see what the target sees.
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
    GATE = 4  # whether XTC acts at a position
    NOISE = 5  # the key of a position's noise under the coupled law


def fresh_seed() -> int:
    """A seed from the operating system's entropy, for requests that name none."""
    return int.from_bytes(os.urandom(8), "little")


def sample_seed(seed: int, index: int) -> int:
    """The seed of one of several samples of a request, from 0 to 2**64 - 1.

    Sample 0 has the request's own seed; those of the others are hashed from it, so that
    neighbouring seeds share none, and any sample can be had again without the others.
    """
    if index == 0:
        return seed
    key, message = seed.to_bytes(8, "little"), index.to_bytes(8, "little")
    digest = hashlib.blake2b(message, digest_size=8, key=key, person=b"mtplx.sample").digest()
    return int.from_bytes(digest, "little")


def uniforms(
    seed: int, position: int, purpose: Purpose, count: int, *, step: int = 0
) -> list[float]:
    """`count` numbers in [0, 1), each a multiple of 2**-24.

    seed: 0 to 2**64 - 1. position, step: 0 or more. Asking for more numbers never changes the
    first ones.
    """
    return [_fraction(word) for word in words(seed, position, purpose, count, step=step)]


def words(seed: int, position: int, purpose: Purpose, count: int, *, step: int = 0) -> list[int]:
    """`count` whole numbers from 0 to 2**32 - 1, those that `uniforms` makes fractions of."""
    key = seed.to_bytes(8, "little")
    message = b"".join(n.to_bytes(8, "little") for n in (position, step, purpose.value))
    found: list[int] = []
    while len(found) < count:
        counter = len(found).to_bytes(8, "little")
        digest = hashlib.blake2b(message + counter, key=key, person=b"mtplx.rng").digest()
        found.extend(_WORDS.unpack(digest))
    return found[:count]


def round_uniforms(seed: int, position: int, num_draft: int) -> Uniforms:
    """What a law needs to verify `num_draft` tokens.

    position: the absolute index of the first token that the round samples.
    """
    accept = [uniforms(seed, position, Purpose.ACCEPT, 1, step=i)[0] for i in range(num_draft)]
    choose = [uniforms(seed, position + i, Purpose.TARGET, 2) for i in range(num_draft + 1)]
    return Uniforms(
        mx.array(accept, dtype=mx.float32),
        mx.array(choose, dtype=mx.float32),
        noise_keys(seed, position, num_draft + 1),
    )


def noise_keys(seed: int, position: int, count: int) -> mx.array:
    """[count, 2] uint32, the keys of the coupled law's noise at `position` and those after it."""
    keys = [words(seed, position + i, Purpose.NOISE, 2) for i in range(count)]
    return mx.array(keys, dtype=mx.uint32)


def gate_uniforms(seed: int, position: int, count: int) -> mx.array:
    """[count] float32: at `position` and the positions after it, the number that decides on XTC.

    A function of the position alone, so that whatever is done there, in this round or a later one,
    goes by the same number. That is sound, since these numbers are part of the target: given them,
    the text has the target's distribution whoever else knows them.
    """
    numbers = [uniforms(seed, position + i, Purpose.GATE, 1)[0] for i in range(count)]
    return mx.array(numbers, dtype=mx.float32)


def draft_uniforms(seed: int, position: int, step: int) -> mx.array:
    """[2] float32 for drawing the draft token that stands `step` after the round's first position.

    position: the absolute index of the first token that the round samples, as in
        `round_uniforms`; not that of the drafted token.
    """
    return mx.array(uniforms(seed, position, Purpose.DRAFT, 2, step=step), dtype=mx.float32)


def _fraction(word: int) -> float:
    # The top 24 of 32 bits: float32 holds every such fraction exactly, so none rounds up to 1.
    return (word >> 8) / 2**24
