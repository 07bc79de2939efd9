"""What the entries of a vocabulary stand for.

Byte-level vocabularies write each of the 256 bytes as one printable character: the printable
Latin-1 bytes as themselves, the others as U+0100 and up in order (Radford et al. 2019, encoder.py).
SentencePiece vocabularies write a space as U+2581 and a single byte as `<0xNN>`.
"""

import re
from collections.abc import Mapping, Sequence
from enum import Enum

METASPACE = "\u2581"
# Tokens that end a reply under these names in every model that has them as special tokens.
_TURN_ENDS = (
    *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    *("<end_of_turn>", "<turn|>", "<|return|>", "<|call|>", "<|end_of_turn|>", "</s>"),
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Spelling(Enum):
    """How a vocabulary writes its tokens."""

    BYTE_LEVEL = "byte-level"
    SENTENCEPIECE = "sentencepiece"


def _byte_of_character() -> dict[str, int]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    shifted = {chr(0x100 + place): byte for place, byte in enumerate(others)}
    return {chr(byte): byte for byte in printable} | shifted


_BYTE_OF_CHARACTER: Mapping[str, int] = _byte_of_character()


def piece_bytes(piece: str, spelling: Spelling) -> bytes:
    """The bytes an ordinary vocabulary entry adds to the text."""
    if spelling is Spelling.SENTENCEPIECE:
        if match := _BYTE_PIECE.fullmatch(piece):
            return bytes([int(match[1], 16)])
        return piece.replace(METASPACE, " ").encode()
    try:
        return bytes([_BYTE_OF_CHARACTER[character] for character in piece])
    except KeyError:
        return piece.encode()  # an entry that merging cannot reach, written as plain text


def turn_end_ids(special: Mapping[str, int]) -> set[int]:
    """The ids of special tokens whose very name says that a reply ends there.

    They are stop ids besides the ones the files name, because files often name only one of them.
    special: name -> id.
    """
    ends = {special[name] for name in _TURN_ENDS if name in special}
    if "<|end|>" in special and "<|return|>" not in special:
        ends.add(special["<|end|>"])  # beside <|return|> it ends a message, not the reply
    return ends


def merges_from_scores(pieces: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """The merges a scored SentencePiece BPE vocabulary stands for, best first.

    pieces: piece -> id, ordinary pieces only. scores: by id; a higher score merges earlier.
    """
    ranked = sorted(
        (piece for piece in pieces if len(piece) > 1), key=lambda piece: -scores[pieces[piece]]
    )
    return [
        (piece[:cut], piece[cut:])
        for piece in ranked
        for cut in range(1, len(piece))
        if piece[:cut] in pieces and piece[cut:] in pieces
    ]
