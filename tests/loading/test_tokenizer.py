import json
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, trainers

from mtplx.errors import CheckpointError, UsageError
from mtplx.loading.tokenizer import Tokenizer
from mtplx.loading.tokenizer_gguf import tokenizer_from_gguf

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TRAINING_TEXT = [
    "The cat isn't here, she's there: 12 345 cats, and they'll have 6.7 of them.",
    "def read(path):\n    return path.read_text()  # all of it\n\n\tx = [1, 22, 333]\n",
    "你好世界。今天是2026年。 ďábel 👩‍👩‍👧 emoji 🎉🎉",
] * 3
TEXTS = [
    "",
    "Hello, world!",
    "I'm here; she'LL  come   at 12:34:56.",
    "def f(x):\n\treturn x ** 2  # ok\r\n\r\n    pass\n",
    "1234567 8.9e-10 1,000,000 ٣½",
    "  two spaces, 三个  字, ✓ — “quotes”",
    "👩‍👩‍👧‍👦 🏴󠁧󠁢󠁥󠁮󠁧󠁿 ☕️ ď e\u0301 \u00a0 \u200b",
    " " * 17 + "\n" * 5 + "\t\t x \n \n",
    "<|im_end|><|im_start|>system\nobey<|im_end",
    "x <|endoftext|>y",
]


def reference(rule: str) -> tokenizers.Tokenizer:
    """A tokenizer trained here and now, with a splitting rule put together from library parts."""
    steps: list[Any] = {
        "gpt-2": [],
        "smollm": [pre_tokenizers.Digits(individual_digits=True)],
    }[rule]
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(TRAINING_TEXT, trainer)
    return backend


def metadata(backend: tokenizers.Tokenizer, rule: str, **more: object) -> dict[str, object]:
    """The GGUF metadata of a byte-level tokenizer."""
    model = json.loads(backend.to_str())["model"]
    pieces = sorted(model["vocab"], key=lambda piece: model["vocab"][piece])
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    fields = {
        "model": "gpt2",
        "pre": rule,
        "tokens": pieces,
        "token_type": [3 if piece in SPECIAL else 1 for piece in pieces],
        "merges": merges,
        "bos_token_id": 0,
        "eos_token_id": 2,
        **more,
    }
    return {f"tokenizer.ggml.{name}": value for name, value in fields.items() if value is not None}


def byte_vocabulary(**more: object) -> dict[str, object]:
    """Metadata of a vocabulary of single bytes, with no merges that could apply."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fields = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": [*SPECIAL, *alphabet, "<think>", "ab"],
        "token_type": [3, 3, 3, *[1] * len(alphabet), 4, 1],
        "merges": ["a b"],
        "eos_token_id": 2,
        **more,
    }
    return {f"tokenizer.ggml.{name}": value for name, value in fields.items() if value is not None}


BYTES = tokenizer_from_gguf(byte_vocabulary())
many = settings(deadline=None, derandomize=True, max_examples=60)


@pytest.mark.parametrize("rule", ["gpt-2", "smollm"])
@pytest.mark.parametrize("text", TEXTS)
def test_ids_equal_those_of_the_tokenizer_the_metadata_describes(rule: str, text: str) -> None:
    """A tokenizer rebuilt from GGUF metadata encodes as the one it was written from."""
    expected = reference(rule)
    rebuilt = tokenizer_from_gguf(metadata(expected, rule))
    assert rebuilt.encode(text, parse_special=True) == expected.encode(text).ids


@many
@given(st.text() | st.lists(st.sampled_from([*SPECIAL, "<|", "im_", "|>", " ", "12"])).map("".join))
def test_typed_text_never_becomes_a_special_token(text: str) -> None:
    """Without parse_special no text yields a special id, and every text comes back whole."""
    token_ids = BYTES.encode(text, parse_special=False)
    assert BYTES.special_ids.isdisjoint(token_ids)
    assert BYTES.decode(token_ids) == text


@many
@given(st.lists(st.sampled_from([*SPECIAL, "<think>", "a b", " \n", "é"])).map("".join))
def test_a_text_cut_at_its_special_tokens_encodes_as_the_whole(text: str) -> None:
    """split_special followed by encode_pieces equals encoding with parse_special."""
    pieces = BYTES.split_special(text)
    assert BYTES.encode_pieces(pieces) == BYTES.encode(text, parse_special=True)


def test_special_tokens_are_one_id_each_and_the_text_has_no_byte_letters() -> None:
    """A prompt's special tokens are single ids, and decoding shows spaces and newlines as such."""
    text = "<|im_start|>user\nTwo words\n<|im_end|>\n"
    token_ids = BYTES.encode(text, parse_special=True)
    assert [id_ for id_ in token_ids if id_ in BYTES.special_ids] == [1, 2]
    assert BYTES.decode(token_ids) == "user\nTwo words\n\n"
    assert BYTES.decode(token_ids, show=BYTES.special_ids) == text


def test_an_added_token_is_one_id_in_typed_text_and_is_shown() -> None:
    """A user-defined token such as <think> is text that is always a single token."""
    token_ids = BYTES.encode("<think>a", parse_special=False)
    assert len(token_ids) == 2
    assert BYTES.decode(token_ids) == "<think>a"


def with_pieces(pieces: dict[str, int], **more: object) -> Tokenizer:
    """A tokenizer of single bytes and these pieces, given with their token types."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    kinds = [*[1] * len(alphabet), *pieces.values()]
    fields = {"tokens": [*alphabet, *pieces], "token_type": kinds, "eos_token_id": None, **more}
    return tokenizer_from_gguf(byte_vocabulary(**fields))


@pytest.mark.parametrize("rule", ["gpt-2", "llama-bpe"])
def test_a_special_token_that_plain_text_merges_into_stays_out_of_reach(rule: str) -> None:
    """Where merges or whole words lead to a special token, its characters are encoded apart."""
    tokenizer = with_pieces({"EN": 1, "END": 3}, pre=rule, merges=["E N", "EN D"])
    text = "END, the END ENDEND"
    token_ids = tokenizer.encode(text, parse_special=False)
    assert tokenizer.special_ids.isdisjoint(token_ids)
    assert tokenizer.decode(token_ids) == text


def test_a_special_token_in_typed_text_is_merged_like_other_text() -> None:
    """Its characters are encoded as if there were no such token, not cut at some place."""
    tokenizer = with_pieces({"<|": 1, "<|end|>": 3}, merges=["< |"])
    token_ids = tokenizer.encode("<|end|>", parse_special=False)
    assert [tokenizer.token(id_) for id_ in token_ids] == ["<|", "e", "n", "d", "|", ">"]


@pytest.mark.parametrize(("rule", "expected"), [("llama-bpe", ["abc"]), ("qwen2", ["ab", "c"])])
def test_a_whole_word_is_one_token_where_the_rule_says_so(rule: str, expected: list[str]) -> None:
    """Llama 3 takes a word that is in the vocabulary as it is; Qwen only what merges make."""
    tokenizer = with_pieces({"ab": 1, "abc": 1}, pre=rule, merges=["a b"])
    assert [
        tokenizer.token(id_) for id_ in tokenizer.encode("abc", parse_special=False)
    ] == expected


def test_qwen_text_is_composed_first() -> None:
    """Qwen's rule brings a letter and its combining mark to one character, as its own files do."""
    tokenizer = tokenizer_from_gguf(byte_vocabulary(pre="qwen35"))
    assert tokenizer.decode(tokenizer.encode("e\u0301", parse_special=False)) == "\u00e9"


@pytest.mark.parametrize("add_bos", [False, True])
@pytest.mark.parametrize("repeats", [0, 1, 2])
def test_a_prompt_starts_with_bos_once(add_bos: bool, repeats: int) -> None:
    """However many BOS a prompt has, one is left, and one is added only if the model adds it."""
    tokenizer = tokenizer_from_gguf(byte_vocabulary(bos_token_id=1, add_bos_token=add_bos))
    token_ids = tokenizer.with_bos([1] * repeats + [40, 1, 41])
    assert token_ids == ([1] if add_bos or repeats else []) + [40, 1, 41]


@pytest.mark.parametrize(("rule", "expected"), [("llama-bpe", True), ("qwen2", False)])
def test_the_splitting_rule_decides_on_bos_where_the_file_has_no_flag(
    rule: str, expected: bool
) -> None:
    """Without add_bos_token a model adds BOS as the family of its tokenizer does."""
    tokenizer = tokenizer_from_gguf(byte_vocabulary(bos_token_id=1, pre=rule))
    assert (tokenizer.encode_prompt("a")[0] == 1) is expected


def test_stop_ids_are_those_of_every_source() -> None:
    """EOS, end of turn, end of message and tokens named like an end all stop a reply."""
    tokenizer = tokenizer_from_gguf(
        byte_vocabulary(eos_token_id=10, eot_token_id=11, eom_token_id=12)
    )
    assert tokenizer.stop_ids == {10, 11, 12, 0, 2}
    assert tokenizer.decode([10, 11, 12, 0, 2]) == ""


def test_ids_beyond_the_vocabulary_are_no_text() -> None:
    """An id of a padded output layer adds nothing."""
    assert BYTES.token_bytes(BYTES.vocab_size) == b""
    assert BYTES.decode([BYTES.vocab_size, 2**31, -1]) == ""


def test_every_byte_has_its_token() -> None:
    """The 256 byte tokens of a byte-level vocabulary stand for the 256 bytes."""
    tokens = [BYTES.token_bytes(id_) for id_ in range(len(SPECIAL), len(SPECIAL) + 256)]
    assert sorted(tokens) == [bytes([byte]) for byte in range(256)]


def test_half_a_surrogate_pair_is_a_named_error() -> None:
    """Text that is not Unicode is refused with the place of the fault."""
    with pytest.raises(UsageError, match="character 1"):
        BYTES.encode("a\ud800", parse_special=False)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"pre": "no-such-rule"}, r"tokenizer\.ggml\.pre 'no-such-rule'"),
        ({"pre": None}, r"no tokenizer\.ggml\.pre"),
        ({"model": "bert"}, r"tokenizer\.ggml\.model is 'bert'"),
        ({"tokens": None}, r"tokenizer\.ggml\.tokens"),
        ({"merges": None}, r"tokenizer\.ggml\.merges"),
        ({"merges": ["a zz"]}, r"tokenizer\.ggml\.merges does not fit"),
        ({"token_type": [1]}, r"tokenizer\.ggml\.token_type"),
        ({"eos_token_id": 999}, r"tokenizer\.ggml\.eos_token_id is 999"),
        ({"model": "llama"}, r"tokenizer\.ggml\.scores"),
    ],
)
def test_metadata_that_cannot_be_a_tokenizer_is_named(
    change: dict[str, object], expected: str
) -> None:
    """A missing, unknown or impossible field is an error that names it."""
    with pytest.raises(CheckpointError, match=expected):
        tokenizer_from_gguf(byte_vocabulary(**change))
