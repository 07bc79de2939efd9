"""Token ids to text as they come, in whole characters.

A token is a run of bytes, not of characters: an emoji is often three tokens. What is not yet a
character waits for the next token.
"""

from codecs import getincrementaldecoder
from collections.abc import Collection, Iterable
from typing import Protocol


class TokenBytes(Protocol):
    """What detokenising needs of a tokenizer."""

    @property
    def hidden_ids(self) -> frozenset[int]:
        """Special and stop tokens, which are not text."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token adds to the text."""


class Detokeniser:
    """Turns the tokens of one text into the same characters however they are cut into pushes.

    All pushes and `finish` together give what decoding every token at once gives: a leading space
    is kept, and bytes that can never be a character come out as U+FFFD, once that is certain.
    Special and stop tokens are left out, except those in `show`, which come out by name.
    """

    def __init__(self, tokenizer: TokenBytes, *, show: Collection[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._hidden = tokenizer.hidden_ids.difference(show)
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Iterable[int]) -> str:
        """The characters that these tokens complete; empty while one is unfinished."""
        token_bytes = self._tokenizer.token_bytes
        text = b"".join(token_bytes(id_) for id_ in token_ids if id_ not in self._hidden)
        return self._decoder.decode(text)

    def finish(self) -> str:
        """What is left when no token follows: U+FFFD for an unfinished character, or nothing.

        Whoever stops in the middle may leave this out; what `push` gave is whole characters. The
        detokeniser is then at the start of a new text.
        """
        return self._decoder.decode(b"", final=True)
