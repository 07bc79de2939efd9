"""Words to lines of a terminal's width, by appending only.

Nothing that was written is ever moved, so there is no flicker, and a terminal that is resized
keeps what it has. A word is held until it is known where it ends.
"""

import unicodedata
from collections.abc import Callable

from rich.cells import cell_len

from mtplx.chat.theme import painted

NARROWEST = 20  # columns; below, breaking lines is left to the terminal
_JOINER = "\u200d"
# Unicode categories: marks, joiners, skin tones, closing brackets, other punctuation, length marks.
_NOT_FIRST = frozenset(("Mn", "Me", "Mc", "Cf", "Sk", "Pe", "Pf", "Po", "Lm"))
_NOT_LAST = frozenset(("Ps", "Pi"))  # opening brackets


class Wrapper:
    """Takes text and line ends in order; `take` gives what can be written.

    width: asked for the terminal's columns at each word, since they may change.
    """

    def __init__(self, width: Callable[[], int]) -> None:
        self._width = width
        self._settled: list[tuple[str, str]] = []  # text, sgr
        self._num_newlines = 0  # not written before something follows
        self._has_begun = False
        self._column = 0
        self._indent = 0
        self._margin = ("", "")  # text, sgr: what further lines of the text begin with
        self._spaces = 0
        self._space_sgr = ""
        self._word: list[tuple[str, str]] = []
        self._is_long = False  # in a word that is wider than a line

    def begin_line(self, prefix: str, sgr: str = "", *, repeats: bool = False) -> None:
        """Write what stands before a line's text; its further lines are indented by as much.

        repeats: they begin with the prefix itself.
        """
        self.verbatim(prefix, sgr)
        self._indent = min(cell_len(prefix), self._limit() // 2)
        self._margin = (prefix, sgr) if repeats else (" " * self._indent, "")

    def text(self, text: str, sgr: str = "") -> None:
        """Text that may be broken at spaces, and between characters of East Asian scripts."""
        for character in text:
            if character in " \t":
                self._end_word()
                self._spaces += 1 if character == " " else 4
                self._space_sgr = sgr
                self._is_long = False
            elif self._is_long:
                self._put(character, sgr)
            else:
                if self._word and _breaks(self._word[-1][0][-1], character):
                    self._end_word()
                self._add(character, sgr)

    def verbatim(self, text: str, sgr: str = "") -> None:
        """Text that is never broken here."""
        self._end_word()
        self._put(" " * self._spaces + text, sgr)
        self._spaces = 0

    def newline(self) -> None:
        self._end_word()
        self._num_newlines += 1
        self._column = self._indent = self._spaces = 0
        self._margin = ("", "")
        self._is_long = False

    def take(self) -> str:
        """What was settled since the last call."""
        parts: list[str] = []
        run, run_sgr = "", ""
        for text, sgr in self._settled:
            if sgr != run_sgr:
                parts.append(painted(run, run_sgr))
                run, run_sgr = "", sgr
            run += text
        self._settled = []
        return "".join([*parts, painted(run, run_sgr)])

    def finish(self) -> str:
        """The rest, ending with a newline if there was anything at all."""
        self._end_word()
        if self._has_begun:
            self._settled.append(("\n", ""))
        return self.take()

    def _add(self, character: str, sgr: str) -> None:
        if self._word and self._word[-1][1] == sgr:
            character = self._word.pop()[0] + character
        self._word.append((character, sgr))
        if len(character) > NARROWEST and self._word_width() > self._limit() - self._indent:
            self._end_word()
            self._is_long = True

    def _end_word(self) -> None:
        if not self._word:
            return
        width = self._word_width()
        if self._column > self._indent and self._column + self._spaces + width > self._limit():
            self._settled += [("\n", ""), self._margin]
            self._column = self._indent
        else:
            self._put(" " * self._spaces, self._space_sgr)
        self._spaces = 0
        word, self._word = self._word, []
        for text, sgr in word:
            self._put(text, sgr)

    def _put(self, text: str, sgr: str) -> None:
        if not text:
            return
        if self._num_newlines:
            if self._has_begun:
                self._settled.append(("\n" * self._num_newlines, ""))
            self._num_newlines = 0
        self._has_begun = True
        self._settled.append((text, sgr))
        self._column += cell_len(text)
        if self._column > self._limit():
            self._column %= max(self._width(), 1)  # the terminal has broken it

    def _word_width(self) -> int:
        return cell_len("".join(text for text, _ in self._word))

    def _limit(self) -> int:
        # One column stays free: terminals differ in the width of some characters.
        width = self._width()
        return width - 1 if width >= NARROWEST else 1 << 30


def _breaks(before: str, after: str) -> bool:
    """Whether a line may be broken between two characters that no space parts."""
    if not (_is_wide(before) or _is_wide(after)) or before == _JOINER or _is_flag_part(after):
        return False
    category = unicodedata.category
    return category(after) not in _NOT_FIRST and category(before) not in _NOT_LAST


def _is_wide(character: str) -> bool:
    """Whether words of such characters are not parted by spaces, which Korean ones are."""
    is_hangul = "\uac00" <= character <= "\ud7a3"
    return unicodedata.east_asian_width(character) in "WF" and not is_hangul


def _is_flag_part(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"
