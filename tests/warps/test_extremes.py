import mlx.core as mx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mtplx import sampling
from mtplx.sampling import History, SamplingParams

INF = float("inf")

extreme_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0, 1e-30, 0.3, 1.0, 1e9]),
    top_k=st.sampled_from([0, 0, 1, 10**30]),
    top_p=st.sampled_from([1.0, 0.9, 1e-300, 1 - 1e-12]),
    min_p=st.sampled_from([0, 0, 1.0, 1e-9]),
    typical_p=st.sampled_from([1.0, 0.5, 1e-300, 1 - 1e-12]),
    xtc_probability=st.sampled_from([0, 0.5, 1.0]),
    xtc_threshold=st.sampled_from([1e-300, 0.1, 0.5]),
    repetition_penalty=st.sampled_from([1.0, 1e9, 1e-9]),
    presence_penalty=st.sampled_from([0, 1e9, -1e9]),
    frequency_penalty=st.sampled_from([0, 1e9, -1e9]),
    penalty_window=st.sampled_from([None, 1, 3, 10**30]),
    dry_multiplier=st.sampled_from([0, 1e9, 1e-300]),
    dry_base=st.sampled_from([1.0, 1 + 1e-15, 1e9]),
    dry_allowed_length=st.sampled_from([1, 2]),
    dry_window=st.sampled_from([None, 1, 3, 10**30]),
    logit_bias=st.sampled_from([{}, {0: 1e9}, {0: -1e9}]),
    allowed_ids=st.sampled_from([None, None, (0,)]),
)


@settings(max_examples=120, deadline=None)
@given(
    st.sampled_from([1, 2, 9, 300, 9000]),
    st.sampled_from(["ordinary", "mostly forbidden", "huge", "flat", "tiny"]),
    st.integers(0, 10**6),
    extreme_params,
)
def test_no_combination_of_extremes_leaves_an_empty_row(
    vocab_size: int, kind: str, seed: int, params: SamplingParams
) -> None:
    """Whatever the fields allow, finite logits give rows of probabilities that sum to 1."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=3, size=(3, vocab_size))
    if kind == "mostly forbidden":
        logits[:, 1:] = np.where(rng.random((3, vocab_size - 1)) < 0.8, -INF, logits[:, 1:])
    logits *= {"huge": 1e37, "flat": 0, "tiny": 1e-30}.get(kind, 1)
    few = min(vocab_size, 3)
    history = rng.integers(0, few, size=seed % 9).tolist()
    draft = mx.array(rng.integers(0, few, size=2).astype(np.int32))
    gates = mx.array(rng.random(3).astype(np.float32))
    rows = mx.array(logits.astype(np.float32))
    warped = sampling.warp(rows, params, History(history, draft, gates))
    found = [warped]
    if params.draws_randomly and params.filters:
        found.append(sampling.completed(warped, params))
    for each in found:
        probs = np.array(each.probs)
        assert np.all(np.array(each.finite))
        assert np.all(probs >= 0)
        np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-5)
