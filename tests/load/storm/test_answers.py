"""Answers are compared to the letter: text, log-probabilities and finish reason."""

import pytest

from load_tests.chaos.doors import Piece, Question
from load_tests.storm.answers import Answers, Sample, Wrong

QUESTION = Question("Hello")
RIGHT = Sample(" world", (-0.5, -1.25), "length")
ANSWERS = Answers({QUESTION: [RIGHT]})


def test_pieces_add_up_to_the_right_answer() -> None:
    sample = Sample()
    for piece in (Piece(" wor", 0, (-0.5,)), Piece("ld", 0, (-1.25,), "length")):
        sample.add(piece)
    ANSWERS.check(QUESTION, [sample])


@pytest.mark.parametrize(
    "given",
    [
        Sample(" word", (-0.5, -1.25), "length"),
        Sample(" world", (-0.5, -1.24), "length"),
        Sample(" world", (-0.5, -1.25), "stop"),
    ],
)
def test_any_difference_is_wrong(given: Sample) -> None:
    with pytest.raises(Wrong, match="it must be"):
        ANSWERS.check(QUESTION, [given])


def test_a_beginning_is_right_and_another_text_is_not() -> None:
    ANSWERS.check_beginning(QUESTION, " wor")
    with pytest.raises(Wrong, match="it must begin ' world'"):
        ANSWERS.check_beginning(QUESTION, "wor")
