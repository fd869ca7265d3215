"""Stop strings in text that comes in pieces."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.text.stop_strings import StopStrings

# Two letters make overlaps of stops and text likely.
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=4)
PIECES = st.lists(st.text("abc", max_size=5), max_size=8)


def ended_by_stop(text: str, stops: list[str], *, stop_shown: bool) -> str | None:
    """The text up to the stop string that ends first, the longest of several that end together."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end if stop_shown else end - max(map(len, complete))]
    return None


def feed(stops: list[str], pieces: list[str], *, stop_shown: bool = False) -> tuple[str, bool]:
    matcher, shown = StopStrings(stops, shown=stop_shown), ""
    for piece in pieces:
        text, stopped = matcher.push(piece)
        shown += text
        if stopped:
            assert matcher.flush() == ""
            return shown, True
    return shown + matcher.flush(), False


@settings(max_examples=500)
@given(STOPS, PIECES, st.booleans())
def test_the_output_is_the_text_up_to_the_stop_however_it_is_cut(
    stops: list[str], pieces: list[str], stop_shown: bool
) -> None:
    text = "".join(pieces)
    ended = ended_by_stop(text, stops, stop_shown=stop_shown)
    assert feed(stops, pieces, stop_shown=stop_shown) == ((text, False) if ended is None else (ended, True))


@given(STOPS, PIECES)
def test_only_what_may_begin_a_stop_string_is_held_back(stops: list[str], pieces: list[str]) -> None:
    matcher, shown, text = StopStrings(stops), "", ""
    for piece in pieces:
        text += piece
        more, stopped = matcher.push(piece)
        shown += more
        if stopped:
            return
        beginnings = {stop[:length] for stop in stops for length in range(1, len(stop))}
        assert len(text) - len(shown) == max((len(b) for b in beginnings if text.endswith(b)), default=0)


@given(STOPS, st.text("abc", max_size=30))
def test_letter_by_letter_and_at_once_are_the_same(stops: list[str], text: str) -> None:
    assert feed(stops, list(text)) == feed(stops, [text])


@settings(max_examples=500)
@given(STOPS, PIECES, st.integers(0, 8))
def test_a_stop_string_in_a_piece_that_must_not_stop_never_counts(stops: list[str], pieces: list[str], n: int) -> None:
    """The first `n` pieces must not stop."""
    matcher, shown = StopStrings(stops), ""
    for index, piece in enumerate(pieces):
        text, stopped = matcher.push(piece, may_stop=index >= n)
        shown += text
        if stopped:
            break
    text, least = "".join(pieces), len("".join(pieces[:n]))
    ends = [end for end in range(least + 1, len(text) + 1) if text[:end].endswith(tuple(stops))]
    longest = max((len(stop) for stop in stops if ends and text[: ends[0]].endswith(stop)), default=0)
    assert shown + matcher.flush() == (text[: ends[0] - longest] if ends else text)


def test_without_stop_strings_everything_passes() -> None:
    assert feed([], ["some ", "text"]) == ("some text", False)


@pytest.mark.parametrize(
    ("stops", "pieces", "shown"),
    [
        (["END"], ["one E", "ND two"], "one "),
        (["aab"], ["a", "a", "a", "b"], "a"),
        (["b", "abc"], ["abc"], "a"),  # `b` ends first though `abc` began first.
        (["abc", "b"], ["ab", "c"], "a"),
        (["b", "ab"], ["a", "b"], ""),  # Both end together, the longer counts.
        (["\n\n"], ["a\n", "\nb"], "a"),
        (["é"], ["caf", "é"], "caf"),
    ],
)
def test_a_stop_string_across_pieces_ends_the_text(stops: list[str], pieces: list[str], shown: str) -> None:
    assert feed(stops, pieces) == (shown, True)


def test_a_beginning_that_goes_on_otherwise_is_shown_at_last() -> None:
    matcher = StopStrings(["END"])
    assert matcher.push("the E") == ("the ", False)
    assert matcher.push("N") == ("", False)
    assert matcher.push("d.") == ("ENd.", False)


def test_what_is_held_back_comes_at_the_end_and_once() -> None:
    matcher = StopStrings(["END"])
    assert matcher.push("the EN") == ("the ", False)
    assert matcher.flush() == "EN"
    assert matcher.flush() == ""
