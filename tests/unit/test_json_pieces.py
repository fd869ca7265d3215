"""Answers with the log-probabilities of long prompts need little more memory than their JSON."""

import json
import tracemalloc
from typing import Any

import pytest
from starlette.responses import JSONResponse

from inflight_client.response import PromptLogprobs, Token, TokenLogprobs
from inflight_gateway.json_pieces import json_pieces, json_response
from inflight_gateway.logprobs import prompt_logprobs


def scores(num_tokens: int) -> PromptLogprobs:
    """The log-probabilities of a prompt as a server sends them, with the 20 likeliest tokens at each position."""
    likeliest = {
        str(token): {"logprob": -token / 7, "rank": token, "decoded_token": f"word{token}"} for token in range(1, 21)
    }
    other = {"77": {"logprob": -9.5, "rank": 300, "decoded_token": "é\n"}}
    return PromptLogprobs(json.dumps([None, *[likeliest | other] * (num_tokens - 1)]), (77,) * num_tokens)


def with_iterators(value: Any) -> Any:
    """The same document with iterators in place of lists."""
    if isinstance(value, list):
        return map(with_iterators, value)
    if isinstance(value, dict):
        return {key: with_iterators(part) for key, part in value.items()}
    return value


@pytest.mark.parametrize(
    "document",
    [
        {},
        [],
        {"é": 'a"\n', "n": None, "parts": []},
        {"choices": [], "usage": {"total": 1}},
        {"choices": [{"index": 0, "scores": [None, {"7": 1.5}]}, {"index": 1, "scores": []}], "n": 1},
    ],
    ids=str,
)
def test_pieces_are_the_json_of_lists(document: Any) -> None:
    body = JSONResponse(document).body
    assert "".join(json_pieces(document)).encode() == body
    assert "".join(json_pieces(with_iterators(document))).encode() == body


@pytest.mark.parametrize("index", [0, 1, -1, slice(1, 3)])
def test_elements_by_index_are_those_of_an_iteration(index: int | slice) -> None:
    read = scores(3)
    assert len(read) == 3
    assert read[index] == tuple(read)[index]


def test_the_chosen_token_and_the_likeliest() -> None:
    first, second = scores(2)
    assert first is None
    assert second is not None
    assert second.chosen == Token(77, "é\n", -9.5, 300)
    assert second == TokenLogprobs(second.chosen, (*second.likeliest[:20], second.chosen))
    assert [token.rank for token in second.likeliest] == [*range(1, 21), 300]


def test_scores_of_a_long_prompt_are_never_all_in_memory() -> None:
    read = scores(2000)
    choices = ({"index": index, "prompt_logprobs": prompt_logprobs(read)} for index in range(2))
    tracemalloc.start()
    try:
        length = sum(map(len, json_pieces({"choices": choices})))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert length > len(read.written)
    assert peak < length / 20


def test_a_large_answer_is_sent_in_pieces_and_a_small_one_with_its_length() -> None:
    assert "content-length" not in json_response({"id": 1}, in_pieces=True).headers
    assert json_response({"id": 1}, in_pieces=False).headers["content-length"] == "8"
