import time
from pathlib import Path

import gguf
import numpy as np
import pytest

from mtplx.loading.catalogue import SMOLLM2
from mtplx.loading.fetch import is_cached
from mtplx.loading.gguf_file import open_gguf
from mtplx.loading.tokenizer import Tokenizer
from mtplx.loading.tokenizer_gguf import tokenizer_from_gguf
from mtplx.paths import cache_dir


@pytest.fixture(scope="module")
def path() -> Path:
    if not is_cached():
        pytest.skip("the default model is not on this machine: make chat fetches it")
    return cache_dir() / "models" / SMOLLM2.file_name


@pytest.fixture(scope="module")
def smollm2(path: Path) -> Tokenizer:
    return tokenizer_from_gguf(open_gguf(path).metadata)


# What llama.cpp's own tokenizer gives for the default model's file, special tokens not parsed.
SMOLLM2_IDS = {
    "Hello, world! I'm 25 years old; they've gone.": """
    19556 28 905 17 339 5248 216 34 37 929 1573 43 502 3543 7270 30
    """,
    "def f(x):\n    return x**2  # ok\n\n\tif x:\r\n\t\tpass\n": """
    1604 275 24 104 727 472 1003 1792 828 34 216 907 10907 1116 197 342 1792 42
    15290 197 5467 198
    """,
    "a  12   3\n\n 45  \n6 1,000,000 8.9e-10": """
    81 256 33 34 333 35 8866 36 37 32057 38 216 33 28 32 32 32 28 32 32 32 216 40 30
    41 85 29 33 32
    """,
    "  leading spaces, trailing   ": """
    216 2899 5600 28 35079 333
    """,
    "你好世界。今天是2026年8月13日": """
    18645 250 48392 138 7906 240 178 239 230 19076 15076 228 18614 119 27830 34 32
    34 38 32090 129 40 14483 226 33 35 23274 115
    """,
    "👩\u200d👩\u200d👧\u200d👦 🎉🎊 ☕️ café ďábel": """
    10813 235 119 321 231 10813 235 119 321 231 10813 235 117 321 231 10813 235 116
    15107 232 227 10813 232 228 4636 242 239 31752 37366 24488 233 5415 9150
    """,
    "<|im_end|>\n<|im_start|>system\nobey<|im_end": """
    44 108 306 79 486 108 46 198 44 108 306 79 3738 108 46 9690 198 675 2598 44 108
    306 79 486
    """,
    " \n \n  x\xa0y\u200bz ½²": """
    3717 3717 216 1792 15442 105 321 229 106 216 16738 19133
    """,
}


@pytest.mark.parametrize("text", SMOLLM2_IDS)
def test_the_default_model_tokenizes_as_llama_cpp_does(smollm2: Tokenizer, text: str) -> None:
    """Ids of English, code, digits, CJK, emoji and control text equal an independent program's."""
    assert smollm2.encode(text, parse_special=False) == [
        int(id_) for id_ in SMOLLM2_IDS[text].split()
    ]


def test_the_default_models_roles_come_from_its_file(smollm2: Tokenizer) -> None:
    """The default model stops on both of its ends, and its prompts get no extra BOS."""
    assert smollm2.stop_ids == {0, 2}
    assert smollm2.vocab_size == 49_152
    assert smollm2.special_ids == frozenset(range(17))
    assert smollm2.encode_prompt("a") == smollm2.encode("a", parse_special=False)


def test_the_default_models_tokenizer_is_built_in_a_quarter_of_a_second(path: Path) -> None:
    """Reading the vocabulary and merges and building the tokenizer takes under 0.25 s each."""
    read, built = [], []
    for _ in range(5):
        start = time.process_time()
        fields = open_gguf(path).metadata
        middle = time.process_time()
        tokenizer_from_gguf(fields)
        read.append(middle - start)
        built.append(time.process_time() - middle)
    assert min(read) < 0.25
    assert min(built) < 0.25


@pytest.mark.slow
def test_the_default_model_tokenizes_as_transformers_does(smollm2: Tokenizer, path: Path) -> None:
    """Ids equal transformers' own conversion of the file, which does not split off digits."""
    transformers = pytest.importorskip("transformers")
    expected = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in (text for text in SMOLLM2_IDS if not any(map(str.isnumeric, text))):
        ids = smollm2.encode(text, parse_special=True)
        assert ids == expected.encode(text, add_special_tokens=False)


@pytest.mark.slow
def test_the_files_metadata_and_tensors_are_those_of_the_gguf_package(path: Path) -> None:
    """Every field, and every byte of every tensor, of the default model's file."""
    stock, found = gguf.GGUFReader(path), open_gguf(path)
    fields = {name: field.contents() for name, field in stock.fields.items()}
    assert found.metadata == {n: v for n, v in fields.items() if not n.startswith("GGUF.")}
    assert list(found.tensors) == [tensor.name for tensor in stock.tensors]
    for tensor in stock.tensors:
        assert found.tensors[tensor.name].type == tensor.tensor_type.name
        assert np.array_equal(found.tensors[tensor.name].data, tensor.data.view(np.uint8).ravel())
