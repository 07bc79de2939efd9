"""The looks of a conversation: what each kind of text is painted with."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Theme:
    """For each kind of text the parameters of a terminal's SGR sequence; empty is unpainted."""

    dim: str = ""  # closing lines, hints, fences
    strong: str = ""
    heading: str = ""
    code: str = ""
    error: str = ""

    @property
    def paints(self) -> bool:
        """Whether text is painted at all; where not, Markdown's marks are left in it."""
        return self != PLAIN


PLAIN = Theme()
# Magenta is the one colour of the eight that is as far from white as from black.
CALM = Theme(dim="2", strong="1", heading="1", code="35", error="31")


def painted(text: str, sgr: str) -> str:
    """Text between an SGR sequence and its end."""
    return f"\x1b[{sgr}m{text}\x1b[0m" if sgr and text else text
