import random
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from mtplx.loading.tokenizer_gguf import tokenizer_from_gguf


def scored_vocabulary(add_space_prefix: bool) -> tuple[dict[str, object], dict[str, float]]:
    """SentencePiece metadata with single letters, pieces grown from them, and byte pieces."""
    rng = random.Random(3)
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    letters = ["\u2581", *"abcde"]
    words = list(letters)
    while len(words) < 60:
        word = rng.choice(words) + rng.choice(words)
        if word not in words and len(word) < 6:
            words.append(word)
    kinds = [2, 3, 3, *[6] * 256, *[1] * len(words)]
    ranks = [0.0] * 259 + [-float(place) for place in range(len(words))]
    fields = {
        "model": "llama",
        "tokens": [*pieces, *words],
        "token_type": kinds,
        "scores": ranks,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "add_space_prefix": add_space_prefix,
    }
    named = {f"tokenizer.ggml.{name}": value for name, value in fields.items()}
    return named, dict(zip(words, ranks[259:], strict=True))


def merge_by_score(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece BPE by its definition: merge the best-scored neighbours until none are left."""
    pieces = list(text.replace(" ", "\u2581"))
    while True:
        joined = [(scores.get(a + b), -i) for i, (a, b) in enumerate(pairwise(pieces))]
        found = [(score, place) for score, place in joined if score is not None]
        if not found:
            return pieces
        place = -max(found)[1]
        pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]


SCORED = {prefix: scored_vocabulary(prefix) for prefix in (False, True)}


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.text(alphabet="abcde ", min_size=1, max_size=30), st.booleans())
def test_scored_pieces_merge_as_sentencepiece_defines(text: str, prefix: bool) -> None:
    """A vocabulary with scores in place of merges gives the pieces of the defining algorithm."""
    fields, scores = SCORED[prefix]
    tokenizer = tokenizer_from_gguf(fields)
    expected = merge_by_score((" " if prefix else "") + text, scores)
    assert [tokenizer.token(id_) for id_ in tokenizer.encode(text, parse_special=False)] == expected


def test_characters_outside_a_scored_vocabulary_go_through_byte_pieces() -> None:
    """A character with no piece is its UTF-8 bytes, and comes back as itself."""
    tokenizer = tokenizer_from_gguf(SCORED[False][0])
    token_ids = tokenizer.encode("a é👍\n", parse_special=False)
    assert tokenizer.decode(token_ids) == "a é👍\n"
    assert b"".join(map(tokenizer.token_bytes, token_ids)) == "a é👍\n".encode()


def test_text_behind_a_special_token_encodes_as_in_the_whole() -> None:
    """Cutting a SentencePiece prompt at special tokens adds no space that the whole has not."""
    tokenizer = tokenizer_from_gguf(SCORED[True][0])
    text = "<s>ab c</s>de"
    pieces = tokenizer.split_special(text)
    assert tokenizer.encode_pieces(pieces) == tokenizer.encode(text, parse_special=True)
