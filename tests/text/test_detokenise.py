import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtplx.loading.tokenizer import Tokenizer
from mtplx.text.detokenise import Detokeniser

many = settings(deadline=None, derandomize=True, max_examples=100)
NUM_SPECIAL = 5
TEXTS = ["👩‍👩‍👧‍👦 family", "ď d\u030c", "你好世界", " leading", "\n\nlines\t", "🇩🇪🏴‍☠️", "<think>x"]


def chunks(token_ids: list[int], sizes: list[int]) -> list[list[int]]:
    """The ids cut into runs of the given sizes, what is left as the last run."""
    runs = []
    for size in sizes:
        runs.append(token_ids[:size])
        token_ids = token_ids[size:]
    return [*runs, token_ids]


@many
@given(st.lists(st.integers(0, NUM_SPECIAL + 258)), st.lists(st.integers(0, 6)))
def test_pushes_add_up_to_decoding_at_once(
    byte_tokenizer: Tokenizer, token_ids: list[int], sizes: list[int]
) -> None:
    """Any tokens in any cut, broken characters and special tokens among them, give one text."""
    detokeniser = Detokeniser(byte_tokenizer)
    parts = [detokeniser.push(run) for run in chunks(token_ids, sizes)]
    assert "".join(parts) + detokeniser.finish() == byte_tokenizer.decode(token_ids)


@pytest.mark.parametrize("text", TEXTS)
def test_whole_characters_come_as_soon_as_they_are_complete(
    byte_tokenizer: Tokenizer, text: str
) -> None:
    """Token by token, what was shown is the longest prefix of whole characters, never U+FFFD."""
    token_ids = byte_tokenizer.encode(text, parse_special=False)
    detokeniser = Detokeniser(byte_tokenizer)
    shown, so_far = "", b""
    for token_id in token_ids:
        shown += detokeniser.push([token_id])
        so_far += byte_tokenizer.token_bytes(token_id)
        assert shown == so_far.decode("utf-8", "ignore")
    assert shown == text
    assert detokeniser.finish() == ""


@pytest.mark.parametrize("text", TEXTS)
def test_an_interrupt_inside_a_character_shows_no_half(
    byte_tokenizer: Tokenizer, text: str
) -> None:
    """Stopping after any token leaves whole characters; finish adds one U+FFFD for a rest."""
    token_ids = byte_tokenizer.encode(text, parse_special=False)
    for length in range(len(token_ids)):
        detokeniser = Detokeniser(byte_tokenizer)
        shown = detokeniser.push(token_ids[:length])
        rest = detokeniser.finish()
        assert text.startswith(shown)
        assert rest in ("", "\ufffd")
        assert detokeniser.push(token_ids) == text


def test_bytes_that_can_never_be_a_character_are_replaced_at_once(
    byte_tokenizer: Tokenizer,
) -> None:
    """A stray byte is U+FFFD with the next push, and the text goes on behind it."""
    lone = byte_tokenizer.encode("é", parse_special=False)[1]
    [letter] = byte_tokenizer.encode("x", parse_special=False)
    detokeniser = Detokeniser(byte_tokenizer)
    assert [detokeniser.push([id_]) for id_ in (letter, lone, letter)] == ["x", "\ufffd", "x"]


def test_special_and_stop_tokens_are_not_shown(byte_tokenizer: Tokenizer) -> None:
    """Neither control tokens nor what ends a reply reach the reader."""
    token_ids = byte_tokenizer.encode("<|im_start|>a<|im_end|>", parse_special=True)
    assert Detokeniser(byte_tokenizer).push(token_ids) == "a"


def test_special_tokens_are_shown_by_name_where_asked(byte_tokenizer: Tokenizer) -> None:
    """Tokens in `show` come out under their name, the others stay hidden."""
    token_ids = byte_tokenizer.encode("<|im_start|>a<|im_end|>", parse_special=True)
    assert Detokeniser(byte_tokenizer, show={1}).push(token_ids) == "<|im_start|>a"
    every = Detokeniser(byte_tokenizer, show=byte_tokenizer.special_ids)
    assert every.push(token_ids) == "<|im_start|>a<|im_end|>"
