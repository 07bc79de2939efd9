import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtplx.errors import UsageError
from mtplx.text.stops import StopMatch, StopMatcher

many = settings(deadline=None, derandomize=True, max_examples=300)
letters = st.text(alphabet="abc\u00e9", max_size=14)


def cut_at_once(text: str, stops: list[str]) -> tuple[str, StopMatch | None]:
    """What a text with stop strings is by definition: what lies before the first of them."""
    places = [(text.find(stop), len(stop), stop) for stop in stops if stop in text]
    if not places:
        return text, None
    start, _, stop = min(places)
    return text[:start], StopMatch(stop, start)


def run(stops: list[str], parts: list[str]) -> tuple[list[str], StopMatch | None]:
    matcher = StopMatcher(stops)
    emitted = [matcher.push(part)[0] for part in parts]
    emitted.append(matcher.finish()[0])
    return emitted, matcher.match


@many
@given(letters, st.lists(letters.filter(bool), max_size=4), st.lists(st.integers(1, 5)))
def test_every_cut_gives_the_text_before_the_first_stop(
    text: str, stops: list[str], sizes: list[int]
) -> None:
    """Emitted text and match are those of the whole text, however it is pushed."""
    parts, rest = [], text
    for size in sizes:
        parts.append(rest[:size])
        rest = rest[size:]
    emitted, match = run(stops, [*parts, rest])
    assert ("".join(emitted), match) == cut_at_once(text, stops)


@many
@given(letters, st.lists(letters.filter(bool), min_size=1, max_size=3))
def test_no_more_is_held_back_than_may_become_a_stop(text: str, stops: list[str]) -> None:
    """After each character, what is held is the beginning of a stop string or empty."""
    matcher = StopMatcher(stops)
    emitted = ""
    for place, character in enumerate(text, start=1):
        emitted += matcher.push(character)[0]
        if matcher.match is not None:
            break
        held = text[len(emitted) : place]
        assert held == "" or any(stop != held and stop.startswith(held) for stop in stops)


@pytest.mark.parametrize("size", range(1, 12))
def test_a_stop_string_over_many_tokens_cuts_exactly_before_it(size: int) -> None:
    """`beta gamma` ends a text in front of its first letter at every chunk size."""
    text = "alpha beta gam, beta gamma delta"
    parts = [text[start : start + size] for start in range(0, len(text), size)]
    emitted, match = run(["beta gamma"], parts)
    assert "".join(emitted) == "alpha beta gam, "
    assert match == StopMatch("beta gamma", 16)


def test_nothing_is_emitted_after_the_stop() -> None:
    """Once a stop string has ended the text, pushes and finish give nothing more."""
    matcher = StopMatcher(["END"])
    assert matcher.push("aENDb") == ("a", True)
    assert matcher.push("c") == ("", True)
    assert matcher.finish() == ("", True)


def test_a_beginning_that_leads_nowhere_comes_out_whole() -> None:
    """Held text is emitted as soon as it cannot become a stop string, and at the end."""
    matcher = StopMatcher(["</end>"])
    assert matcher.push("a </e") == ("a ", False)
    assert matcher.push("m> </") == ("</em> ", False)
    assert matcher.finish() == ("</", False)


def test_a_complete_stop_string_does_not_wait_for_a_longer_one() -> None:
    """A match ends the text at once where what may follow could only begin at the same place."""
    assert StopMatcher(["ab", "abc"]).push("xab") == ("x", True)


def test_the_start_of_the_match_tells_which_tokens_belong_to_the_text() -> None:
    """Counting the characters of each token up to the match gives the tokens before it."""
    tokens = ["one", " two", " st", "op", " three"]
    matcher = StopMatcher([" stop"])
    ends, total = [], 0
    for token in tokens:
        total += len(token)
        ends.append(total)
        if matcher.push(token)[1]:
            break
    assert matcher.match is not None
    assert sum(end <= matcher.match.start for end in ends) == 2


def test_no_stop_strings_hold_nothing_back() -> None:
    """Without stop strings every push comes out as it is."""
    assert run([], ["a", "", "b"]) == (["a", "", "b", ""], None)


@pytest.mark.parametrize("stops", [[""], ["a", ""], "abc", [None]])
def test_stop_strings_that_cannot_be_meant_are_refused(stops: list[str]) -> None:
    """An empty stop string, or one text in place of a list, is a UsageError."""
    with pytest.raises(UsageError, match="Stop strings"):
        StopMatcher(stops)
