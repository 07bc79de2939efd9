"""The program behind `make exact`."""

from unittest.mock import patch

import pytest

from tests.exact import __main__ as proof
from tests.exact.catalogue import MUTANTS
from tests.exact.mutants import Mutant, edit
from tests.exact.settings import SETTINGS, examine


def harmless(x: float) -> float:
    return x + 1


def test_a_mutant_that_survives_and_a_row_that_is_off_fall_short(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Either is named on standard error, and the exit code is 1."""
    survivor = Mutant(
        "no mistake", edit(harmless, "x + 1", "1 + x"), ("test_x::test_y", lambda: None)
    )
    law = next(m for m in MUTANTS if m.row == ("rejection", "one-hot"))

    def part(tally: proof.Tally) -> None:
        assert tally.catch([survivor, law]) == "1 / 2"
        with law.change():
            finding = examine("rejection", SETTINGS["one-hot"]())
        tally.faults += finding.faults("rejection")

    with patch.object(proof, "_parts", lambda **options: [part]):
        assert proof.main([]) == 1
    out, err = capsys.readouterr()
    assert "1 of 2 mutants caught" in out
    assert "not caught: no mistake (test_x::test_y)" in err
    assert "total variation" in err


def test_the_rows_are_printed_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """A line per law and setting, with what was measured and the mutants killed and made."""
    few = {"one-hot": SETTINGS["one-hot"]}
    with patch("tests.exact.settings.SETTINGS", few):
        proof.law_rows(tally := proof.Tally())
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["law", "rejection", "block", "coupled"]
    assert lines[1].endswith("2 / 2")
    assert (tally.rows, tally.faults) == (3, [])


def test_an_option_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """With one line and exit code 2."""
    assert proof.main(["--fast"]) == 2
    assert "--fast" in capsys.readouterr().err
