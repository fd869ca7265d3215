"""What a request knows of itself."""

import pytest

from tests.unit.builders import make_request


def test_a_new_request_knows_its_prompt_and_has_computed_nothing() -> None:
    request = make_request("a", [1, 2, 3])
    assert (request.token_ids, request.num_uncomputed, request.num_output) == ([1, 2, 3], 3, 0)


def test_output_does_not_change_the_prompt() -> None:
    request = make_request("a", [1, 2, 3])
    request.token_ids.append(4)
    assert (request.prompt_ids, request.num_output, request.num_uncomputed) == ([1, 2, 3], 1, 4)


def test_the_last_token_never_enters_the_cache() -> None:
    assert make_request("a", 10, max_tokens=5).max_cached_tokens == 14


@pytest.mark.parametrize(
    ("output", "reason"),
    [([1], None), ([1, 2, 3], "length"), ([9], None), ([1, 9], "stop"), ([1, 2, 9], "stop")],
)
def test_the_newest_token_decides_whether_and_why_a_request_ends(output: list[int], reason: str | None) -> None:
    request = make_request("a", 2, max_tokens=3, min_tokens=2, stop_token_ids=[9])
    *before, newest = output
    assert request.append(before) == (before, None)
    assert request.append([newest]) == ([newest], reason)


def test_tokens_of_a_step_after_the_end_are_dropped() -> None:
    request = make_request("a", 2, max_tokens=3, stop_token_ids=[9])
    assert request.append([1, 9, 5]) == ([1, 9], "stop")
    assert request.output_ids == [1, 9]


def test_requests_with_equal_contents_are_still_two() -> None:
    assert make_request("a") != make_request("a")
