"""Text from a model made safe to print on a terminal."""

_NAMED = {0x08: "\\b", 0x0C: "\\f", 0x0D: "\\r", 0x1B: "\\e"}
_CONTROLS = [*range(0x20), *range(0x7F, 0xA0)]
_BIDI_OVERRIDES = [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_SURROGATES = range(0xD800, 0xE000)  # cannot be written to a UTF-8 stream at all
_ESCAPES = {
    **{code: f"\\x{code:02x}" for code in _CONTROLS if code not in (0x09, 0x0A)},
    **{code: f"\\u{code:04x}" for code in [*_BIDI_OVERRIDES, *_SURROGATES]},
    **_NAMED,
}


def printable(text: str) -> str:
    """Text in which nothing can steer a terminal or reverse the reading order.

    Control characters other than newline and tab, bidirectional overrides and halves of surrogate
    pairs become visible escapes such as `\\e`, `\\x9b` and `\\u202e`, one character at a time, so
    text that is cut in the middle of an escape sequence is as safe as the whole. The result is for
    looking at: a backslash of the text itself stays single.
    """
    return text.translate(_ESCAPES)
