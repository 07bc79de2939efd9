"""How drafts are made: what changes the speed of a text and never its distribution."""

from dataclasses import dataclass
from numbers import Real

from mtplx.errors import UsageError

DRAFT_MODES = ("auto", "greedy", "sampled", "filtered", "lookup")


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """Who drafts and how. At temperature 0 a head drafts greedily in every mode.

    mode: how the MTP head chooses: "greedy", the token it finds most probable; "sampled", a draw
        at the draft temperature; "filtered", a draw at the request's temperature within the
        request's top-k, top-p, min-p and typical-p, applied to the head. "auto" takes the one
        that is about to be accepted most, and changes it as the text goes on. "lookup" leaves the
        head alone and drafts from repetitions only, which needs no head.
    temperature: of "sampled"; None is 0.85 of the request's, which suits the head that is here: of
        chat, code, tables and prose at 0.7 and 1 it is accepted 0 to 3 % more often than at 1.
    stop: end the draft before a token that is less likely than this to be reached and accepted,
        going by the head's own probabilities; 0 never does. Each drafted token then costs a read
        of the device, so None is 0 on a GPU, and on a CPU, which has worked it out anyway, 0.1:
        about what a row more to verify costs.
    window: tokens of the text that the head looks back over, besides the first few; 0 is all.
        Behind a long text its steps then cost less and foresee less. None is what `mtplx tune`
        found to be faster, else all.
    lookup: whether what followed an earlier occurrence of the last tokens may be drafted, in place
        of the head's tokens or after them, where more of it is expected to be accepted.

    Raises UsageError, naming the field, its value and what it may be.
    """

    mode: str = "auto"
    temperature: float | None = None
    stop: float | None = None
    window: int | None = None
    lookup: bool = True

    def __post_init__(self) -> None:
        if self.mode not in DRAFT_MODES:
            raise _wrong("mode", self.mode, f"one of: {', '.join(DRAFT_MODES)}")
        if self.temperature is not None and not _is_number(self.temperature, 1e-9, 1e9):
            raise _wrong("temperature", self.temperature, "None or a number from 1e-9 to 1e9")
        if self.stop is not None and not _is_number(self.stop, 0, 1):
            raise _wrong("stop", self.stop, "None or a number from 0 (off) to 1")
        if self.window is not None and not _is_whole(self.window):
            raise _wrong("window", self.window, "None or a whole number of 0 (all) or more")
        if not isinstance(self.lookup, bool):
            raise _wrong("lookup", self.lookup, "True or False")

    @property
    def uses_head(self) -> bool:
        """Whether an MTP head is asked at all."""
        return self.mode != "lookup"

    @property
    def looks_up(self) -> bool:
        """Whether repetitions are drafted."""
        return self.lookup or self.mode == "lookup"


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: object, low: float, high: float) -> bool:
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return low <= float(value) <= high  # NaN is not


def _wrong(name: str, value: object, allowed: str) -> UsageError:
    return UsageError(f"The draft's {name} is {value!r}, but must be {allowed}.")
