"""Single values, whatever a client sent them as."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight import InvalidRequest
from serving import values

READERS = [
    values.text,
    values.integer,
    values.number,
    values.truth,
    values.texts,
    values.integers,
    values.matrix,
]


@pytest.mark.parametrize(
    ("reader", "sent", "read"),
    [
        (values.text, "é", "é"),
        (values.text, "é".encode(), "é"),
        (values.text, "", ""),
        (values.integer, 5, 5),
        (values.integer, "5", 5),
        (values.integer, "-5", -5),
        (values.integer, 5.0, 5),
        (values.integer, np.int32(5), 5),
        (values.integer, np.uint64(2**64 - 1), 2**64 - 1),
        (values.integer, np.float32(5), 5),
        (values.number, 5, 5.0),
        (values.number, "0.5", 0.5),
        (values.number, "1e-3", 1e-3),
        (values.number, np.float32(0.5), 0.5),
        (values.truth, True, True),
        (values.truth, np.bool_(False), False),
        (values.truth, 1, True),
        (values.truth, 0, False),
        (values.truth, "True", True),
        (values.truth, "false", False),
        (values.texts, "END", ("END",)),
        (values.texts, [b"a", "b"], ("a", "b")),
        (values.texts, (), ()),
        (values.integers, 3, (3,)),
        (values.integers, [1, "2", 3.0], (1, 2, 3)),
    ],
)
def test_a_value_that_fits_is_read(reader: Callable[[str, Any], Any], sent: Any, read: Any) -> None:
    got = reader("field", sent)
    assert got == read
    assert type(got) is type(read)


@pytest.mark.parametrize(
    ("reader", "sent", "says"),
    [
        (values.text, 5, "it must be a text"),
        (values.text, None, "it must be a text"),
        (values.text, ["a", "b"], "it must be a text"),
        (values.text, [], "it must be a text"),
        (values.integer, "five", "it must be a whole number"),
        (values.integer, "5.0", "it must be a whole number"),
        (values.integer, 5.5, "it must be a whole number"),
        (values.integer, float("nan"), "it must be a whole number"),
        (values.integer, float("inf"), "it must be a whole number"),
        (values.integer, True, "it must be a whole number"),
        (values.integer, None, "it must be a whole number"),
        (values.integer, [1, 2], "it must be a whole number"),
        (values.number, "much", "it must be a number"),
        (values.number, True, "it must be a number"),
        (values.number, {}, "it must be a number"),
        (values.truth, "yes", "it must be true or false"),
        (values.truth, 2, "it must be true or false"),
        (values.truth, None, "it must be true or false"),
        (values.truth, [], "it must be true or false"),
        (values.texts, ["a", 5], "it must be a text"),
        (values.integers, [1, None], "it must be a whole number"),
    ],
)
def test_a_value_that_does_not_fit_is_named(reader: Callable[[str, Any], Any], sent: Any, says: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"^field is .*; {re.escape(says)}$"):
        reader("field", sent)


def test_bytes_that_are_not_utf8_are_pointed_at() -> None:
    with pytest.raises(InvalidRequest, match="field is not valid UTF-8: byte 2 is 0xff"):
        values.text("field", b"ab\xffc")


def test_half_of_a_surrogate_pair_is_no_text() -> None:
    """JSON can escape one, and no tokenizer can read it."""
    with pytest.raises(InvalidRequest, match=r"^field "):
        values.text("field", "a\ud800")


@pytest.mark.parametrize("reader", [values.integer, values.number])
def test_a_number_too_long_to_be_read_is_refused(reader: Callable[[str, Any], Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"^field is "):
        reader("field", "9" * 5000 + "x")


def test_a_whole_number_too_large_for_a_float_is_no_number() -> None:
    with pytest.raises(InvalidRequest, match=r"^field is "):
        values.number("field", 10**400)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=2)),
    max_leaves=4,
)


@given(st.sampled_from(READERS), JSON)
def test_whatever_was_sent_it_is_read_or_refused_by_name(reader: Callable[[str, Any], Any], sent: Any) -> None:
    try:
        reader("field", sent)
    except InvalidRequest as refusal:
        assert str(refusal).startswith("field")  # noqa: PT017


ROWS = np.arange(6, dtype=np.float16).reshape(2, 3)


@pytest.mark.parametrize("sent", [ROWS, ROWS[None], ROWS.tolist(), ROWS.astype(np.float32)])
def test_rows_of_numbers_are_read(sent: Any) -> None:
    assert values.matrix("field", sent).tolist() == ROWS.tolist()


@pytest.mark.parametrize("sent", [5, [1.0], [[1.0], [1.0, 2.0]], [["a"]], {}, "rows", np.zeros(3), np.zeros((2, 2, 3))])
def test_other_numbers_are_refused(sent: Any) -> None:
    with pytest.raises(InvalidRequest, match="field must be one list of rows"):
        values.matrix("field", sent)
