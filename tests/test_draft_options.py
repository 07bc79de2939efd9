"""What may be asked of drafts."""

import pytest

from mtplx.draft_options import DraftOptions
from mtplx.errors import UsageError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mode", "fast"),
        ("mode", None),
        ("temperature", 0),
        ("temperature", float("nan")),
        ("temperature", "hot"),
        ("stop", -0.1),
        ("stop", 1.5),
        ("stop", True),
        ("lookup", 1),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(field: str, value: object) -> None:
    """The error names the field, its value and what it may be."""
    with pytest.raises(UsageError, match=rf"draft's {field} is .*must be"):
        DraftOptions(**{field: value})  # type: ignore[arg-type]  # what a caller might do
