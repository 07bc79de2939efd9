"""A whole model, small enough to be measured in a test."""

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

# MLX is imported in the fixtures: this file is read before the suite has chosen the BLAS.
if TYPE_CHECKING:
    from mtplx.loading.load import LoadedModel

END = "<|end|>"


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> "LoadedModel":
    """Random weights over single bytes as tokens, with a random MTP head."""
    from tokenizers import pre_tokenizers

    from mtplx.loading.head_file import HeadFile
    from mtplx.loading.load import LoadedModel
    from mtplx.loading.tokenizer_gguf import tokenizer_from_gguf
    from tests.tiny import DIMS, tiny_head, tiny_target, whole_vocabulary

    tokens = [END, *sorted(pre_tokenizers.ByteLevel.alphabet()), "ab"]
    fields = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [3, *[1] * (len(tokens) - 1)],
        "merges": ["a b"],
        "eos_token_id": 0,
    }
    tokenizer = tokenizer_from_gguf({f"tokenizer.ggml.{name}": v for name, v in fields.items()})
    target = tiny_target(dims=replace(DIMS, vocab_size=len(tokens)))
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    path.write_bytes(b"GGUF and nothing else")
    shortlist = whole_vocabulary(target)
    head = HeadFile(path, target.dims, tiny_head(), shortlist.ids, trunk="", num_bytes=0)
    return LoadedModel(
        name="tiny",
        path=path,
        target=target,
        tokenizer=tokenizer,
        head=head,
        no_head_reason=None,
        shortlist=shortlist,
        load_s=0.0,
    )


@pytest.fixture
def headless_model(tiny_model: "LoadedModel") -> "LoadedModel":
    """The same without a head."""
    reason = "no MTP head was found for this model."
    return replace(tiny_model, head=None, shortlist=None, no_head_reason=reason)
