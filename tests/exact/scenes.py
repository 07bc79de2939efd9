"""The settings that the joint law is enumerated for."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Protocol

import mlx.core as mx
import numpy as np

from mtplx import sampling
from mtplx.sampling import History, SamplingParams
from tests.exact.scene import Floats, Prefix, Scene, normalised, random_tree, tree_rows


class Family(Protocol):
    """Makes a scene of a size, different for every seed."""

    def __call__(self, vocab_size: int, depth: int, max_tokens: int, seed: int) -> Scene: ...


PROMPT = (0, 1)


def sampled(vocab_size: int, depth: int, max_tokens: int, seed: int) -> Scene:
    """Drafts drawn from a full-support q that has nothing to do with p."""
    p, q = random_tree(vocab_size, seed), random_tree(vocab_size, seed + 1000)
    return Scene(tree_rows(p), _over_all(q), lambda _: depth, max_tokens=max_tokens)


def sparse(vocab_size: int, depth: int, max_tokens: int, seed: int) -> Scene:
    """p and q each zero where the other need not be."""
    p, q = random_tree(vocab_size, seed, 0.5), random_tree(vocab_size, seed + 1000, 0.5)
    return Scene(tree_rows(p), _over_all(q), lambda _: depth, max_tokens=max_tokens)


def one_hot(vocab_size: int, depth: int, max_tokens: int, seed: int) -> Scene:
    """A greedy head: the most probable token of q, handed over without probabilities."""
    return _greedy_at(sampled(vocab_size, depth, max_tokens, seed), frozenset(range(depth)))


def mixed(vocab_size: int, depth: int, max_tokens: int, seed: int) -> Scene:
    """Sampled tokens with a one-hot one in their midst, as lookup after a head's draft gives."""
    return _greedy_at(sampled(vocab_size, depth, max_tokens, seed), frozenset({1}))


def one_hot_first(vocab_size: int, depth: int, max_tokens: int, seed: int) -> Scene:
    """A one-hot token followed by sampled ones over a part of the vocabulary."""
    return _greedy_at(shortlist(vocab_size, depth, max_tokens, seed), frozenset({0}))


def shortlist(vocab_size: int, depth: int, max_tokens: int, seed: int) -> Scene:
    """A q renormalised on a part of the vocabulary, in an order of its own."""
    support = (vocab_size - 1, 0)
    scene = sampled(vocab_size, depth, max_tokens, seed)

    def on_support(emitted: Prefix, draft: Prefix) -> Floats:
        return normalised(np.isin(np.arange(vocab_size), support) * scene.proposal(emitted, draft))

    return replace(scene, proposal=on_support, support=support)


def entropy_stop(vocab_size: int, depth: int, max_tokens: int, seed: int) -> Scene:
    """A chain that ends before a draw from a q that is too flat."""
    scene = sampled(vocab_size, depth, max_tokens, seed)
    return replace(scene, stops_before=lambda q: float(q.max()) < 0.55)


def keep_then_stop(vocab_size: int, depth: int, max_tokens: int, seed: int) -> Scene:
    """A chain that ends behind an improbable token, which is kept."""
    return replace(sampled(vocab_size, depth, max_tokens, seed), stops_after=_improbable)


def discarding(vocab_size: int, depth: int, max_tokens: int, seed: int) -> Scene:
    """Not exact: a chain that ends before an improbable token, once that has been drawn."""
    return replace(sampled(vocab_size, depth, max_tokens, seed), discards=_improbable)


def stopping(vocab_size: int, depth: int, max_tokens: int, seed: int) -> Scene:
    """A stop token anywhere in the block, and a depth that varies with the text."""

    def varying(emitted: Prefix) -> int:
        return (seed + 1 + len(emitted) + sum(emitted)) % (depth + 1)

    return replace(sampled(vocab_size, depth, max_tokens, seed), depth=varying, stop_id=1)


def overshooting(vocab_size: int, depth: int, max_tokens: int, seed: int) -> Scene:
    """Texts so short that every block reaches beyond their end."""
    return replace(sampled(vocab_size, depth, max_tokens, seed), max_tokens=min(2, depth))


def logits_after(prefix: Prefix, vocab_size: int, seed: int) -> Floats:
    """[V], what the target of a warped scene says before any warp."""
    return np.random.default_rng([seed, *prefix]).normal(size=vocab_size)


def warped(
    params: SamplingParams,
    vocab_size: int,
    depth: int,
    max_tokens: int,
    seed: int,
    gates: tuple[float, ...] = (),
) -> Scene:
    """The target's rows come from the production warps of a whole block at once.

    gates: of XTC, for each token of the text; those of further rows do not matter.
    """
    q = random_tree(vocab_size, seed + 1000)

    @cache
    def rows(emitted: Prefix, draft: Prefix) -> Floats:
        prefixes = [emitted + draft[:i] for i in range(len(draft) + 1)]
        block = np.stack([logits_after(prefix, vocab_size, seed) for prefix in prefixes])
        ahead = [*gates, *[0.0] * len(draft)][len(emitted) : len(emitted) + len(block)]
        history = History(
            PROMPT + emitted,
            mx.array(draft, dtype=mx.int32),
            mx.array(ahead) if gates else None,
        )
        result = sampling.warp(mx.array(block.astype(np.float32)), params, history)
        probs = np.array(result.probs).astype(np.float64)
        assert np.all(probs.sum(axis=-1) > 0), "a row without any token"
        return normalised(probs)  # beyond what float32 can do

    return Scene(rows, _over_all(q), lambda _: depth, max_tokens=max_tokens)


def misdrafted(
    vocab_size: int, depth: int, max_tokens: int, seed: int, temperature: float
) -> Scene:
    """Not exact: drafts drawn at one temperature with the q of another handed over."""
    scene = sampled(vocab_size, depth, max_tokens, seed)

    def drawn_from(emitted: Prefix, draft: Prefix) -> Floats:
        q = scene.proposal(emitted, draft)
        return peak(q) if temperature == 0 else normalised(q ** (1 / temperature))

    return replace(scene, proposal=drawn_from, handed_over=scene.proposal)


def peak(q: Floats) -> Floats:
    """[V], one-hot at the most probable token."""
    certain = np.zeros(len(q))
    certain[q.argmax()] = 1
    return certain


def _greedy_at(scene: Scene, positions: frozenset[int]) -> Scene:
    """The scene with the most probable token of q at these positions of each draft."""

    def proposal(emitted: Prefix, draft: Prefix) -> Floats:
        q = scene.proposal(emitted, draft)
        return peak(q) if len(draft) in positions else q

    return replace(scene, proposal=proposal, one_hot=positions)


def _improbable(q: Floats, token_id: int) -> bool:
    return float(q[token_id]) < 0.3


def _over_all(tree: Callable[[Prefix], Floats]) -> Callable[[Prefix, Prefix], Floats]:
    return lambda emitted, draft: tree(emitted + draft)
