"""How a byte-level vocabulary splits text before merging, by the name a GGUF file gives.

A GGUF file holds the vocabulary and the merges but only a *name* for the splitting rule
(`tokenizer.ggml.pre`), so the rules are written out here. They are part of each model's published
tokenizer; the names are those that llama.cpp's converter writes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mtplx.errors import CheckpointError

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s+(?!\S)|\s+"
_LINES = r"\s*[\r\n]+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+"
_GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+|{_SYMBOLS}|{_SPACES}"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}[\r\n]*|{_LINES}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_SYMBOLS}[\r\n]*|{_LINES}|{_SPACES}"
_QWEN35 = (  # as Qwen2's, with combining marks kept beside their letters
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES}|{_SPACES}"
)
_SEED = rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_LINES}|{_SPACES}"
_BAILING = rf"'(?i:[sdmt]|ll|ve|re)|{_WORD}|\p{{N}}|{_SYMBOLS}[\r\n]*|\s*[\r\n]|{_SPACES}"
_MINICPM5 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}+|{_SYMBOLS}[\r\n]*|{_LINES}|{_SPACES}"

_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LOWER_END = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+"
_UPPER_START = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_TEKKEN = rf"{_LOWER_END}|{_UPPER_START}|\p{{N}}|{_SYMBOLS}[\r\n/]*|{_LINES}|{_SPACES}"
_GPT4O = (
    rf"{_LOWER_END}{_CONTRACTION}?|{_UPPER_START}{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}|{_SYMBOLS}[\r\n/]*|{_LINES}|{_SPACES}"
)

_DEEPSEEK_V3_WORDS = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_LINES}|{_SPACES}"
)
_CJK_AND_KANA = r"[\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+"
_CJK_AND_HANGUL = r"[\x{4e00}-\x{9fa5}\x{0800}-\x{4e00}\x{ac00}-\x{d7ff}]+"
_FALCON_SYMBOLS = r"[\p{P}\$\+<=>\^~\|`]+"


@dataclass(frozen=True, slots=True)
class SplitRule:
    """One vocabulary's way of cutting text into the pieces that merging never crosses.

    patterns: applied one after the other, each to the pieces the last one left.
    whole_words: a piece that is in the vocabulary is one token, whatever the merges say.
    adds_bos: whether a prompt starts with BOS when the file has no flag that says so.
    composes: text is brought to Unicode form NFC first.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    adds_bos: bool = False
    composes: bool = False


def _named(rule: SplitRule, *names: str) -> dict[str, SplitRule]:
    return dict.fromkeys(names, rule)


SPLIT_RULES: Mapping[str, SplitRule] = MappingProxyType(
    {
        "default": SplitRule((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
        "falcon": SplitRule((_FALCON_SYMBOLS, _GPT2, "[0-9][0-9][0-9]")),
        **_named(SplitRule((_GPT2,)), "gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion"),
        **_named(SplitRule((_GPT2,)), "gigachat", "a.x-4.0", "mellum", "exaone4"),
        **_named(SplitRule((_GPT2,)), "granite-docling", "modern-bert"),
        **_named(SplitRule((r"\p{N}", _GPT2)), "smollm", "starcoder", "refact", "command-r"),
        **_named(SplitRule((r"\p{N}", _GPT2)), "codeshell", "exaone", "minerva-7b", "mellum2"),
        **_named(
            SplitRule((_LLAMA3,), whole_words=True, adds_bos=True),
            *("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral"),
            *("midm-2.0", "lfm2"),
        ),
        **_named(SplitRule((_LLAMA3,)), "dbrx", "smaug-bpe", "chatglm-bpe"),
        **_named(SplitRule((_LLAMA3,), whole_words=True), "glm4", "glm5"),
        **_named(SplitRule((_QWEN2,), composes=True), "qwen2"),
        **_named(SplitRule((_QWEN2,)), "deepseek-r1-qwen", "kormo", "megrez", "stablelm2"),
        **_named(SplitRule((_QWEN2,)), "hunyuan", "solar-open", "grok-2"),
        "qwen35": SplitRule((_QWEN35,), composes=True),
        "seed-coder": SplitRule((_SEED,)),
        **_named(SplitRule((_BAILING,)), "bailingmoe", "bailingmoe2", "llada-moe"),
        "minicpm5": SplitRule((r"\p{N}{1,3}", _MINICPM5), whole_words=True),
        "tekken": SplitRule((_TEKKEN,), whole_words=True, adds_bos=True),
        **_named(SplitRule((_GPT4O,)), "gpt-4o", "llama4", "kanana2", "minimax-m2"),
        "deepseek-coder": SplitRule(
            (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_AND_HANGUL, r"\p{N}")
        ),
        **_named(
            SplitRule((r"\p{N}{1,3}", _CJK_AND_KANA, _DEEPSEEK_V3_WORDS)),
            *("deepseek-v3", "hunyuan-dense", "joyai-llm"),
        ),
    }
)


def split_rule(name: object) -> SplitRule:
    """The rule a GGUF file names in `tokenizer.ggml.pre`.

    Raises CheckpointError where the name is missing or not known: text split by another rule
    gives tokens the model has not learned, and nothing would show it.
    """
    if isinstance(name, str) and name in SPLIT_RULES:
        return SPLIT_RULES[name]
    problem = "has no tokenizer.ggml.pre" if name is None else f"has tokenizer.ggml.pre {name!r}"
    raise CheckpointError(
        f"The GGUF file {problem}, so how its tokenizer splits text is not known. "
        "Use the model's original folder (with tokenizer.json), or convert it again with a current "
        f"llama.cpp. Known rules: {', '.join(sorted(SPLIT_RULES))}."
    )
