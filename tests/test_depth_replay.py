"""The depth that is chosen, on cost tables that others have published."""

import pytest

from mtplx.costs import expected_tokens
from tests.depth_replay import ROWS, Row, verdict


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_auto_is_as_good_as_the_best_fixed_depth(row: Row) -> None:
    """To 3 %, with the table as its profile and with what is shipped for such a machine; and to 2 %
    as good as plain decoding."""
    found = verdict(row)
    slower = min(found.tuned.tokens_per_s, found.shipped.tokens_per_s)
    assert slower > 0.97 * found.best
    assert slower > 0.98 * found.plain


def test_the_tables_hold_what_was_published() -> None:
    """Speeds of the fixed depths that were measured come out of the rows as they went in."""
    speeds = {row.name: row for row in ROWS}
    for name, depth, speed in (
        ("v100, code", 3, 173.1),
        ("v100, code", 7, 197.1),
        ("v100, prose", 3, 113.9),
        ("v100, at 0.5k", 7, 127.4),
        ("v100, at 65k", 3, 76.3),
        ("v100, at 65k", 7, 54.7),
    ):
        row = speeds[name]
        found = expected_tokens(row.rates, depth) / row.machine.round_s(depth, row.context)
        assert found == pytest.approx(speed, rel=0.01), name
