"""The table of `make bench-queue`."""

from load_tests.bench.queues import QUEUES, row


def test_rounds_are_told_by_the_middle_and_the_worst_and_refused_requests_are_not_timed() -> None:
    rounds = [[0.5, None, 0.25, 1.0], [0.5, None, 0.75, 2.0], [None, None, 0.25, 9.0]]
    assert row(QUEUES[0], rounds) == "| the engine's (config.pbtxt) | 4 at once | 0.75 | 2.00 | 9.00 | 3 |"
