"""Real models of other families and types than the default one: they load and say what is true."""

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mtplx import generate
from mtplx.loading.load import LoadedModel, load
from tests.loading.real_files import GEMMA3, QWEN2, RealFile, real_file

Loaded = Callable[[RealFile], LoadedModel]
PASSAGE = (
    "Call me Ishmael. Some years ago, never mind how long precisely, having little or no money in "
    "my purse, and nothing particular to interest me on shore, I thought I would sail about a "
    "little and see the watery part of the world."
)


@pytest.fixture
def loaded(tmp_path: Path, pytestconfig: pytest.Config) -> Loaded:
    fetches = bool(pytestconfig.getoption("--real-files"))
    return lambda file: load(real_file(file, tmp_path, fetches=fetches))


def perplexity(model: LoadedModel, text: str) -> float:
    """Of a text's tokens after the first. With other weights it is in the thousands."""
    token_ids = model.tokenizer.encode_prompt(text)
    target = model.target
    hidden = target.forward(mx.array(token_ids[:-1]), target.make_cache())
    logits = target.logits(target.normalise(hidden)).astype(mx.float32)
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    found = mx.take_along_axis(logprobs, mx.array(token_ids[1:])[:, None], axis=-1)
    return float(np.exp(-np.array(found).mean()))


@pytest.mark.slow
def test_gemma_3_in_four_bits_continues_a_fact(loaded: Loaded) -> None:
    """Q4_K, Q5_0, Q6_K and Q8_0 in one file; sliding windows; a SentencePiece vocabulary."""
    model = loaded(GEMMA3)
    question = "Q: What is the capital of France?\nA: Paris\nQ: What is the capital of Italy?\nA:"
    reply = generate(model, question, raw=True, temperature=0, max_tokens=3)
    assert "Rome" in reply.text
    assert perplexity(model, PASSAGE) < 60


@pytest.mark.slow
def test_qwen_2_5_in_four_bits_writes_a_function(loaded: Loaded) -> None:
    """Q4_K, Q5_0, Q6_K and Q8_0 in one file; biases; a byte-level vocabulary and a template."""
    model = loaded(QWEN2)
    question = "Write a Python function add(a, b) that returns the sum. Answer with code only."
    reply = generate(model, question, temperature=0, max_tokens=30)
    assert "def add(a, b):" in reply.text
    assert "return a + b" in reply.text
    assert perplexity(model, PASSAGE) < 50
