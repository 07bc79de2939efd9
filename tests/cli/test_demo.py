from pathlib import Path

from tests.cli.conftest import Run


def test_both_ways_are_shown_with_their_figures(mtplx: Run, tiny: Path, tiny_head: Path) -> None:
    """Each prompt is answered with drafting off and on, and the ratio says where it comes from."""
    ran = mtplx("demo", "--model", tiny, "--head", tiny_head, "--max-tokens", "12")
    shown = ran.out.decode()
    assert ran.code == 0
    assert shown.count("MTP off") == shown.count("MTP on") == 2
    assert shown.count("times as fast, the same text") == 2
    assert "of one run" in shown


def test_without_a_head_it_says_why_there_is_nothing_to_compare(mtplx: Run, tiny: Path) -> None:
    """Plain decoding is shown, and the reason why it is all."""
    ran = mtplx("demo", "--model", tiny, "--max-tokens", "12")
    shown = ran.out.decode()
    assert ran.code == 0
    assert shown.count("MTP off") == 2
    assert "There is no MTP on: no MTP head was found" in shown
    assert "times as fast" not in shown
