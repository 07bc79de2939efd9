import pytest
from tokenizers import pre_tokenizers

from mtplx.loading.pretokenizers import SPLIT_RULES
from mtplx.loading.tokenizer import Tokenizer
from mtplx.loading.tokenizer_gguf import tokenizer_from_gguf

# The last one is x and the first byte of a combining accent, the one before it ! and a newline.
PIECES = ["12", "123", "1234", "'R", "'RE", "!\u010a", "x\u00cc"]
MERGES = ["1 2", "12 3", "123 4", "' R", "'R E", "! \u010a", "x \u00cc"]
TEXT = (
    "I'm 12345 YEARS old!!\n\n  def f(x):\r\n\treturn x_1 ** 2 \u4f60\u597d\u4e16\u754c "
    "\u30ab\u30bf\u30ab\u30ca \uc548\ub155 \u0441\u0442\u0440 \u00e9 e\u0301 \u0e2a\u0e27\u0e31 "
    "\U0001f469\u200d\U0001f467 \u00bd\u0663   \n \n x  "
)


def tokenizer(rule: str) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fields = {"model": "gpt2", "pre": rule, "tokens": [*alphabet, *PIECES], "merges": MERGES}
    return tokenizer_from_gguf({f"tokenizer.ggml.{name}": value for name, value in fields.items()})


def pieces(rule: str, text: str) -> list[str]:
    split = tokenizer(rule)
    return [split.token_bytes(id_).decode() for id_ in split.encode(text, parse_special=False)]


@pytest.mark.parametrize("rule", SPLIT_RULES)
def test_no_rule_loses_a_character(rule: str) -> None:
    """Whatever the rule, text of every kind comes back whole (composed where the rule composes)."""
    split = tokenizer(rule)
    composed = TEXT.replace("e\u0301", "\u00e9")
    expected = composed if SPLIT_RULES[rule].composes else TEXT
    assert split.decode(split.encode(TEXT, parse_special=False)) == expected


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (["gpt-2", "olmo"], ["1234"]),
        (["smollm", "starcoder", "qwen2", "qwen35", "tekken", "seed-coder"], ["1", "2", "3", "4"]),
        (["llama-bpe", "glm4", "deepseek-v3", "gpt-4o", "default", "falcon"], ["123", "4"]),
    ],
)
def test_digits_are_grouped_as_the_family_does(rules: list[str], expected: list[str]) -> None:
    """Numbers stay whole, fall into digits, or into groups of three from the left."""
    for rule in rules:
        assert pieces(rule, "1234") == expected, rule


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("gpt-2", ["'", "R", "E"]), ("llama-bpe", ["'RE"]), ("qwen2", ["'RE"])],
)
def test_upper_case_contractions_hold_where_the_rule_ignores_case(
    rule: str, expected: list[str]
) -> None:
    """After a digit, Llama 3 and Qwen keep 'RE together; GPT-2 knows it in lower case only."""
    assert pieces(rule, "1'RE")[1:] == expected


@pytest.mark.parametrize(("rule", "expected"), [("gpt-2", 2), ("llama-bpe", 1), ("qwen35", 1)])
def test_line_ends_join_the_symbols_before_them_where_the_rule_says_so(
    rule: str, expected: int
) -> None:
    """Llama 3 and Qwen take newlines into a run of symbols, GPT-2 does not."""
    assert len(pieces(rule, "!\n")) == expected


@pytest.mark.parametrize(("rule", "joined"), [("qwen2", False), ("qwen35", True)])
def test_combining_marks_stay_with_their_letter_in_qwen35_only(rule: str, joined: bool) -> None:
    """An accent that composes with no letter is part of the word for Qwen 3.5, not for Qwen 2."""
    split = tokenizer(rule)
    token_ids = split.encode("x\u0301", parse_special=False)
    assert (split.token(token_ids[0]) == "x\u00cc") is joined
