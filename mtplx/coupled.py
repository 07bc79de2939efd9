"""The coupled law: noise that target and drafter share, so that a seed decides the whole text.

Every position t and token x has an exponential random number E_t(x), a function of nothing but the
seed, t and x. The text is argmin_x E_t(x) / p_t(x) at every position, which is a draw from p_t (an
exponential race; as log p + Gumbel noise it is the Gumbel-max trick). So neither drafter nor depth
can change it. The drafter runs the same race on its q, and where q is near p the same token wins:
with a probability of at least (1 - TV) / (1 + TV), Daliri et al., arXiv 2408.07978.

The numbers come from a hash on the device, 32 bits for each token, keyed with 64 bits for each
position: elementwise, so a row is the same alone and among others, and for part of the vocabulary.
"""

import mlx.core as mx

from mtplx.speculation import Acceptance, Draft, Uniforms

_ODD = 0x9E3779B9  # 2**32 / golden ratio: spreads consecutive ids over all bits


def verify_coupled(p: mx.array, draft: Draft, uniforms: Uniforms) -> Acceptance:
    """Keep drafted tokens as long as they are the ones that the noise chooses from p.

    p: [K + 1, V] float32, row i the target's distribution after i drafted tokens. How the draft
    was drawn plays no part. Lazy; reads nothing to the host and changes no input.
    """
    assert uniforms.noise is not None, "the coupled law needs the keys of its noise"
    ids = mx.arange(p.shape[-1], dtype=mx.uint32)
    chosen = race(p, exponentials(uniforms.noise, ids))  # [K + 1]
    agreed = (chosen[:-1] == draft.token_ids).astype(mx.int32)
    zero = mx.zeros((), dtype=mx.int32)
    num_accepted = mx.sum(mx.cumprod(agreed)) if len(draft) else zero
    return Acceptance(num_accepted.astype(mx.int32), chosen, zero)


def race(probs: mx.array, noise: mx.array) -> mx.array:
    """The column [...] int32 with the least noise / probs, both [..., S]: a draw from `probs`.

    The rows need not sum to 1, but need some mass. A column of probability 0 is never drawn.
    """
    return mx.argmin(noise / probs, axis=-1).astype(mx.int32)


def exponentials(keys: mx.array, token_ids: mx.array) -> mx.array:
    """[..., S] float32, exponential random numbers of rate 1 for tokens [S] under keys [..., 2].

    Between 2**-33 and 17. They are fine-grained where they are small, which is where tokens of
    little probability win: 32 bits of resolution, and float32's relative precision.
    """
    return _exponential(_hash(keys.astype(mx.uint32), token_ids.astype(mx.uint32)))


def _exponential(bits: mx.array) -> mx.array:
    """-log(1 - v) for v the fraction of 2**32 that the bits make, without its ends."""
    # The largest words would round to 1, whose logarithm is infinite.
    v = mx.minimum(bits.astype(mx.float32) * 2**-32 + 2**-33, 1 - 2**-24)
    # With the rounding of 1 - v made good, as log1p does at three times the price.
    rest = 1 - v
    return mx.where(rest < 1, -mx.log(rest) * (v / mx.maximum(1 - rest, 2**-24)), v)


def _hash(keys: mx.array, ids: mx.array) -> mx.array:
    """[..., S] uint32 from keys [..., 2] and ids [S]: a bijection of the ids for each key."""
    x = ids * mx.array(_ODD, dtype=mx.uint32)
    return _mixed(_mixed(x ^ keys[..., :1]) + keys[..., 1:])


def _mixed(x: mx.array) -> mx.array:
    """A bijection of uint32 in which each bit of x flips about half of the others."""
    x = (x ^ (x >> 16)) * mx.array(0x21F0AAAD, dtype=mx.uint32)
    x = (x ^ (x >> 15)) * mx.array(0xD35A2D97, dtype=mx.uint32)
    return x ^ (x >> 15)
