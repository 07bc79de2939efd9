"""llama.cpp drafts with the same head from the same GGUF file, and is right about as often.

Needs its wheel: `pip install xllamacpp`.
"""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mtplx.loading.gguf_file import open_gguf
from mtplx.loading.gguf_model import gguf_model
from mtplx.loading.load import load
from mtplx.models.drafter import HeadDrafter
from mtplx.params import SamplingParams
from mtplx.state import DecodeState
from mtplx.stats import DecodeStats
from tests.loading import gguf_conversion
from tests.loading.gguf_conversion import CASES, Arrays, stored_weights, write_case
from tests.loading.llama_cpp import llama_cpp, needs_llama_cpp
from tests.tiny import finish, start

pytestmark = needs_llama_cpp
ROOT = Path(__file__).parents[2]
ASSET = ROOT / "tests/assets/tiny-qwen3_5"
SIZES = {
    "block_count": 5,
    "nextn_predict_layers": 1,
    "context_length": 4096,
    "embedding_length": 192,
    "feed_forward_length": 512,
    "attention.head_count": 8,
    "attention.key_length": 32,
    "attention.value_length": 32,
    "vocab_size": 512,
    "full_attention_interval": 4,
    "rope.dimension_sections": [2, 1, 1, 0],
    "ssm.state_size": 64,
    "ssm.time_step_rank": 4,
    "ssm.inner_size": 256,
}
HEAD = {
    "mtp.fc": "eh_proj",
    "mtp.pre_fc_norm_embedding": "enorm",
    "mtp.pre_fc_norm_hidden": "hnorm",
    "mtp.norm": "shared_head_norm",
}


def as_gguf(path: Path) -> Path:
    """The trained hybrid with its head, as llama.cpp's converter writes them."""
    loaded = mx.load(str(ASSET / "model.safetensors"))
    assert isinstance(loaded, dict)
    usual: Arrays = {}
    own: Arrays = {}
    for name, array in loaded.items():
        values = np.array(array.astype(mx.float32))
        if (part := name.removesuffix(".weight")) in HEAD:
            norm = values.ndim == 1
            own[f"blk.4.nextn.{HEAD[part]}.weight"] = values + 1 if norm else values
        else:
            moved = name.replace("language_model.", "").replace("mtp.layers.0.", "model.layers.4.")
            usual[moved] = values
    fields = {key.replace(".", "__"): value for key, value in SIZES.items()}
    return write_case(path, CASES["qwen35"], stored_weights("qwen35", usual) | own, **fields)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in (("KEYS", 2), ("VALUES", 4), ("KEY", 64), ("VALUE", 64)):
        monkeypatch.setattr(gguf_conversion, name, value)
    names = [f"{i:03}" for i in range(512)]
    tokens = {"tokenizer.ggml.tokens": names, "tokenizer.ggml.token_type": [1] * 512}
    tokenizer = gguf_conversion.TOKENIZER | tokens | {"tokenizer.ggml.eos_token_id": 511}
    monkeypatch.setattr(gguf_conversion, "TOKENIZER", tokenizer)
    return as_gguf(tmp_path / "a.gguf")


@pytest.mark.slow
def test_drafts_are_accepted_as_often_as_llama_cpps(file: Path) -> None:
    """One token a round at temperature 0, behind three passages: the same text, and of a hundred
    drafts the same ones but for near ties. A head that is fed otherwise is right far less often."""
    text = (ROOT / "mtplx/rng.py").read_text()
    token_ids = list(load(ASSET).tokenizer.encode(text, parse_special=False))
    model = gguf_model(open_gguf(file), 512, packed=False)
    assert model.head is not None
    params = SamplingParams(temperature=0.0, max_tokens=100)
    with llama_cpp(file, drafts=True) as oracle:
        for begin in (0, 100, 200):
            prompt, stats = token_ids[begin : begin + 60], DecodeStats()
            state = DecodeState(model.target, HeadDrafter(model.head.on(model.target)))
            written = finish(start(state, prompt, params, depth=1, stats=stats))
            theirs, accepted = oracle.written(prompt, 100)
            assert written == theirs
            assert stats.accepted[0] > 25
            assert abs(stats.accepted[0] - accepted) <= 2
