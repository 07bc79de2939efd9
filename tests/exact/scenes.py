"""The settings that the joint law is enumerated for."""

from collections.abc import Callable
from functools import cache
from typing import Protocol

import mlx.core as mx
import numpy as np

from mtplx import sampling
from mtplx.sampling import History, SamplingParams
from tests.exact.enumeration import Floats, Prefix, Scene, normalised, random_tree, tree_rows


class Family(Protocol):
    """Makes a scene of a size, different for every seed."""

    def __call__(self, vocab_size: int, depth: int, max_tokens: int, seed: int) -> Scene: ...


PROMPT = (0, 1)


def sampled(vocab_size: int, depth: int, max_tokens: int, seed: int) -> Scene:
    """Drafts drawn from a full-support q that has nothing to do with p."""
    p, q = random_tree(vocab_size, seed), random_tree(vocab_size, seed + 1000)
    return Scene(tree_rows(p), _over_all(q), lambda _: depth, max_tokens=max_tokens)


def sparse(vocab_size: int, depth: int, max_tokens: int, seed: int) -> Scene:
    """Filtered p and filtered q, each zero where the other need not be."""
    p, q = random_tree(vocab_size, seed, 0.5), random_tree(vocab_size, seed + 1000, 0.5)
    return Scene(tree_rows(p), _over_all(q), lambda _: depth, max_tokens=max_tokens)


def one_hot(vocab_size: int, depth: int, max_tokens: int, seed: int) -> Scene:
    """A greedy head: the most probable token of q, handed over without probabilities."""
    p, q = random_tree(vocab_size, seed), random_tree(vocab_size, seed + 1000)

    def greedy(emitted: Prefix, draft: Prefix) -> Floats:
        return peak(q(emitted + draft))

    return Scene(tree_rows(p), greedy, lambda _: depth, one_hot=True, max_tokens=max_tokens)


def shortlist(vocab_size: int, depth: int, max_tokens: int, seed: int) -> Scene:
    """A q renormalised on a part of the vocabulary, in an order of its own."""
    support = (vocab_size - 1, 0)
    p, q = random_tree(vocab_size, seed), random_tree(vocab_size, seed + 1000)

    def on_support(emitted: Prefix, draft: Prefix) -> Floats:
        kept = np.isin(np.arange(vocab_size), support) * q(emitted + draft)
        return normalised(kept)

    return Scene(tree_rows(p), on_support, lambda _: depth, support=support, max_tokens=max_tokens)


def stopping(vocab_size: int, depth: int, max_tokens: int, seed: int) -> Scene:
    """A stop token anywhere in the block, and a depth that varies and overshoots the end."""
    p, q = random_tree(vocab_size, seed), random_tree(vocab_size, seed + 1000)

    def varying(emitted: Prefix) -> int:
        return (seed + len(emitted) + sum(emitted)) % (depth + 1)

    return Scene(tree_rows(p), _over_all(q), varying, stop_id=1, max_tokens=max_tokens)


def warped(
    params: SamplingParams, vocab_size: int, depth: int, max_tokens: int, seed: int
) -> Scene:
    """The target's rows come from the production warps of a whole block at once."""
    q = random_tree(vocab_size, seed + 1000)

    def logits(prefix: Prefix) -> Floats:
        return np.random.default_rng([seed, *prefix]).normal(scale=2, size=vocab_size)

    @cache
    def rows(emitted: Prefix, draft: Prefix) -> Floats:
        block = np.stack([logits(emitted + draft[:i]) for i in range(len(draft) + 1)])
        history = History(PROMPT + emitted, mx.array(draft, dtype=mx.int32))
        result = sampling.warp(mx.array(block.astype(np.float32)), params, history)
        probs = np.array(result.probs).astype(np.float64)
        return normalised(probs)  # beyond what float32 can do

    return Scene(rows, _over_all(q), lambda _: depth, max_tokens=max_tokens)


def misdrafted(
    vocab_size: int, depth: int, max_tokens: int, seed: int, temperature: float
) -> Scene:
    """Not exact: drafts drawn at one temperature with the q of another handed over."""
    scene = sampled(vocab_size, depth, max_tokens, seed)

    def drawn_from(emitted: Prefix, draft: Prefix) -> Floats:
        q = scene.proposal(emitted, draft)
        if temperature == 0:
            return peak(q)
        return normalised(q ** (1 / temperature))

    return Scene(
        scene.target, drawn_from, scene.depth, handed_over=scene.proposal, max_tokens=max_tokens
    )


def peak(q: Floats) -> Floats:
    """[V], one-hot at the most probable token."""
    one_hot = np.zeros(len(q))
    one_hot[q.argmax()] = 1
    return one_hot


def _over_all(tree: Callable[[Prefix], Floats]) -> Callable[[Prefix, Prefix], Floats]:
    return lambda emitted, draft: tree(emitted + draft)
