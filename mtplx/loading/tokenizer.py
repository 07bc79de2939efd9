"""Text to token ids and token ids to bytes, for any vocabulary a checkpoint brings.

Three kinds of token: *special* ones steer the model and are not text (`<|im_end|>`); *added* ones
are text that is always one token (`<think>`); the rest are ordinary. Special tokens are only ever
produced where the caller asks for them, never by what a user typed.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from mtplx.errors import UsageError
from mtplx.loading.vocabulary import Spelling, piece_bytes

if TYPE_CHECKING:
    import tokenizers

# Put before a piece so that the backend does not take it for the start of a text, which in
# SentencePiece vocabularies would add a space. Noncharacters, and a piece that holds them is cut.
_GUARD = "\ufdd0\ufdd1"
_INSIDE_GUARD = re.compile("(?<=\ufdd0)(?=\ufdd1)")
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class TokenRoles:
    """What a checkpoint's files say about its tokens.

    stop_ids: every id that ends a reply, from all sources together.
    bos_id, eos_id: None where the model has none.
    unknown_id: what stands for characters the vocabulary lacks; None where those are left out.
    add_bos: whether a prompt starts with BOS.
    """

    stop_ids: frozenset[int]
    bos_id: int | None = None
    eos_id: int | None = None
    unknown_id: int | None = None
    add_bos: bool = False


class Tokenizer:
    """A vocabulary with its rules. Not changed by use.

    backend: tokenizers.Tokenizer whose added tokens are all registered, special ones as special.
    """

    def __init__(
        self,
        backend: "tokenizers.Tokenizer",
        *,
        spelling: Spelling,
        roles: TokenRoles,
        chat_template: str | None = None,
    ) -> None:
        added = backend.get_added_tokens_decoder()
        self.spelling = spelling
        self.roles = roles
        self.chat_template = chat_template
        self.vocab_size = max(backend.get_vocab_size(), max(added, default=-1) + 1)
        self.special_ids = frozenset(id_ for id_, token in added.items() if token.special)
        self._added = {id_: token.content for id_, token in added.items()}
        self._backend = backend
        self._plain = _without_special(backend)
        self._bytes: dict[int, bytes] = {}

    @property
    def stop_ids(self) -> frozenset[int]:
        """Every id that ends a reply."""
        return self.roles.stop_ids

    @cached_property
    def hidden_ids(self) -> frozenset[int]:
        """The tokens that are not text: special ones and those that end a reply."""
        return self.special_ids | self.stop_ids

    @property
    def bos_token(self) -> str | None:
        """BOS as the chat template writes it."""
        return self.token(self.roles.bos_id) if self.roles.bos_id is not None else None

    @property
    def eos_token(self) -> str | None:
        """EOS as the chat template writes it."""
        return self.token(self.roles.eos_id) if self.roles.eos_id is not None else None

    @cached_property
    def special_tokens(self) -> tuple[str, ...]:
        """The special tokens as a template writes them."""
        return tuple(self._added[id_] for id_ in sorted(self.special_ids))

    def token(self, token_id: int) -> str:
        """A token as the vocabulary spells it; empty for an id that it does not name."""
        return (self._backend.id_to_token(token_id) or "") if 0 <= token_id < 2**32 else ""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token adds to the text; its name for a special token.

        Empty for ids the vocabulary does not name: a model's output layer is often padded.
        """
        known = self._bytes.get(token_id)
        if known is None:
            content = self._added.get(token_id)
            known = piece_bytes(self.token(token_id), self.spelling)
            self._bytes[token_id] = known = content.encode() if content is not None else known
        return known

    def decode(self, token_ids: Iterable[int], *, show: Iterable[int] = ()) -> str:
        """The text of token ids, special and stop tokens left out except those in `show`.

        A leading space is kept, and bytes that are no character come out as U+FFFD.
        """
        hidden = self.hidden_ids.difference(show)
        kept = (self.token_bytes(id_) for id_ in token_ids if id_ not in hidden)
        return b"".join(kept).decode("utf-8", "replace")

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        """The ids of a text, without BOS.

        parse_special: whether the name of a special token in the text becomes that token. False
        for anything a person or a file said: it is then encoded as the characters it is made of.
        """
        _check_text(text)
        if parse_special:
            return self._backend.encode(text, add_special_tokens=False).ids
        return self._encode_plain(text, first=True)

    def encode_prompt(self, text: str) -> list[int]:
        """The ids of plain text that is a prompt by itself, with BOS if the model wants it."""
        return self.with_bos(self.encode(text, parse_special=False))

    def with_bos(self, token_ids: Sequence[int]) -> list[int]:
        """A prompt with BOS once at its start.

        Without BOS if the model has none, or neither adds it nor finds it in the prompt: such
        models were trained without.
        """
        bos_id = self.roles.bos_id
        start = 0
        while start < len(token_ids) and token_ids[start] == bos_id:
            start += 1
        if bos_id is None or not (start or self.roles.add_bos):
            return list(token_ids)
        return [bos_id, *token_ids[start:]]

    def split_special(self, text: str) -> list[str | int]:
        """A text cut at the names of special tokens: the text between them, and their ids."""
        _check_text(text)
        encoding = self._backend.encode(text, add_special_tokens=False)
        pieces: list[str | int] = []
        end = 0
        for id_, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
            # The unknown token also stands for characters, not only for its own name.
            if id_ in self.special_ids and text[start:stop].strip() == self._added[id_].strip():
                pieces += [text[end:start], id_]
                end = stop
        return [piece for piece in [*pieces, text[end:]] if piece != ""]

    def encode_pieces(self, pieces: Sequence[str | int]) -> list[int]:
        """The ids of plain text and token ids in turn, as of one text cut at its special tokens."""
        token_ids: list[int] = []
        for place, piece in enumerate(pieces):
            if isinstance(piece, int):
                token_ids.append(piece)
            else:
                token_ids += self._encode_plain(piece, first=place == 0)
        return token_ids

    def _encode_plain(self, text: str, *, first: bool) -> list[int]:
        """The ids of text in which nothing is a special token. first: it starts the prompt."""
        token_ids: list[int] = []
        for part in _INSIDE_GUARD.split(text):
            token_ids += self._encode_part(part, first=first and not token_ids)
        return token_ids

    def _encode_part(self, text: str, *, first: bool) -> list[int]:
        skip = 0 if first else len(_GUARD)
        encoding = self._plain.encode(_GUARD[:skip] + text, add_special_tokens=False)
        ids, offsets = encoding.ids, encoding.offsets
        if skip:
            ids, offsets = ids[1:], offsets[1:]
        forbidden = self.special_ids - {self.roles.unknown_id}
        # A vocabulary may merge plain characters into a special token's entry; cutting the
        # text inside it keeps the characters and leaves the token out of reach.
        cuts = [
            start + 1 - skip
            for id_, (start, end) in zip(ids, offsets, strict=True)
            if id_ in forbidden and end - start > 1
        ]
        if not cuts:
            return ids
        bounds = [0, *cuts, len(text)]
        parts = [text[a:b] for a, b in pairwise(bounds)]
        return [
            id_
            for place, part in enumerate(parts)
            for id_ in self._encode_part(part, first=first and place == 0)
        ]


def _without_special(backend: "tokenizers.Tokenizer") -> "tokenizers.Tokenizer":
    """The same model and rules, finding no special token in a text but the guard."""
    import tokenizers

    plain = tokenizers.Tokenizer(backend.model)  # shares the model, does not copy it
    if backend.normalizer is not None:
        plain.normalizer = backend.normalizer
    if backend.pre_tokenizer is not None:
        plain.pre_tokenizer = backend.pre_tokenizer
    # Special tokens are registered too, or added tokens that lie outside the model's own
    # vocabulary would be numbered differently.
    added = sorted(backend.get_added_tokens_decoder().items())
    guard = tokenizers.AddedToken(_GUARD, special=False, normalized=False)
    plain.add_tokens([*(token for _, token in added), guard])
    plain.encode_special_tokens = True
    return plain


def _check_text(text: str) -> None:
    if (match := _SURROGATE.search(text)) is not None:
        raise UsageError(
            f"The text holds half a surrogate pair ({match[0]!r}) at character {match.start()}, "
            "which is not Unicode text. Read the input as UTF-8 or replace it."
        )
