"""The tables of a storm, and the promises that it checks."""

from collections import Counter
from dataclasses import replace

import pytest

from load_tests.storm.report import broken_promises, tables
from load_tests.storm.storm import Weather

MIB = 2**20
KEPT = Weather(
    ends={"greedy": Counter({"right": 3}), "malformed": Counter({"refused, as it must be": 2})},
    memory=[{"model": 1000 * MIB, "gateway": 50 * MIB}, {"model": 1019 * MIB, "gateway": 49 * MIB}],
)


def test_tables_have_sums_and_growth() -> None:
    lines = tables(KEPT).splitlines()
    assert lines[0] == (
        "| Kind of request | Asked | Right | Refused, as it must be | Left by its client "
        "| Refused, as the queue was full | Wrong | Without an end |"
    )
    assert lines[2:5] == [
        "| greedy | 3 | 3 | 0 | 0 | 0 | 0 | 0 |",
        "| malformed | 2 | 0 | 2 | 0 | 0 | 0 | 0 |",
        "| **all** | 5 | 3 | 2 | 0 | 0 | 0 | 0 |",
    ]
    assert lines[-2:] == ["| model | 1000.0 | 1000.0 | 1019.0 | +1.9% |", "| gateway | 50.0 | 50.0 | 49.0 | -2.0% |"]


def test_kept_promises_give_no_line() -> None:
    assert broken_promises(KEPT) == []


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"ends": {"greedy": Counter({"wrong": 2})}}, "2 requests were wrong"),
        ({"ends": {"greedy": Counter({"without an end": 1})}}, "1 requests were without an end"),
        (
            {"ends": {"greedy": Counter({"right": 2, "refused, as the queue was full": 3})}},
            "3 requests found the queue full, and only 2 were answered",
        ),
        ({"memory": [{"model": 1000}, {"model": 1021}]}, "the memory of model grew by 2.1%"),
        ({"stays_busy": True}, "the model was busy without a request"),
        ({"regions": 2}, "2 files were left in /dev/shm"),
        ({"replaced": ["tritonserver --http"]}, "this process ended: tritonserver --http"),
    ],
)
def test_each_broken_promise_has_a_line(changes: dict[str, object], line: str) -> None:
    assert broken_promises(replace(KEPT, **changes)) == [line]  # type: ignore[arg-type]
