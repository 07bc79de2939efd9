from collections.abc import Callable

import pytest
from tokenizers import pre_tokenizers

from mtplx.loading.tokenizer import Tokenizer
from mtplx.loading.tokenizer_gguf import tokenizer_from_gguf

SPECIAL = ["<|end|>", "<|im_start|>", "<|im_end|>", "<|user|>", "<s>"]
MakeTokenizer = Callable[..., Tokenizer]


@pytest.fixture(scope="session")
def make_tokenizer() -> MakeTokenizer:
    """Builds a tokenizer of single bytes: every character outside ASCII is several tokens."""

    def make(template: str | None = None, **more: object) -> Tokenizer:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        fields = {
            "model": "gpt2",
            "pre": "gpt-2",
            "tokens": [*SPECIAL, *alphabet, "<think>", "ab"],
            "token_type": [*[3] * len(SPECIAL), *[1] * len(alphabet), 4, 1],
            "merges": ["a b"],
            "eos_token_id": 2,
            **more,
        }
        metadata = {f"tokenizer.ggml.{name}": value for name, value in fields.items()}
        return tokenizer_from_gguf(metadata | {"tokenizer.chat_template": template})

    return make


@pytest.fixture(scope="session")
def byte_tokenizer(make_tokenizer: MakeTokenizer) -> Tokenizer:
    return make_tokenizer()
