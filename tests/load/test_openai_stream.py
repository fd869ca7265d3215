"""Tokens are counted as exactly as each server's stream allows. The lines are those that real servers send."""

import json
from dataclasses import replace

import pytest

from load_tests.failures import RequestFailed
from load_tests.openai_stream import TokenCounts, completion_body, refusal
from load_tests.prompts import PlannedRequest


def event(data: str) -> list[str]:
    """The lines of an event."""
    return [f"data: {data}\n", "\n"]


def piece(text: str, finish_reason: str | None = None, **more: object) -> list[str]:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
    return event(json.dumps({"object": "text_completion", "choices": [choice], **more}))


def usage(tokens: int) -> dict[str, object]:
    return {"usage": {"prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": 3 + tokens}}


def final(tokens: int) -> list[str]:
    return [*event(json.dumps({"choices": [], **usage(tokens)})), *event("[DONE]")]


STREAMS = {
    "gateway": (
        [
            *piece("a", usage=None),
            *piece("b", usage=None),
            *piece("c", "length", usage=None),
            *final(3),
        ],
        [1, 1, 1],
    ),
    "llama.cpp, whose last piece is empty": ([*piece("a"), *piece("b"), *piece("", "length"), *final(2)], [1, 1]),
    "tokens without text of their own": ([*piece("a"), *piece("bc", "length"), *final(5)], [1, 4]),
    "vllm with continuous_usage_stats": (
        [*piece("a", **usage(1)), *piece("bcd", **usage(4)), *piece("e", "length", **usage(5)), *final(5)],
        [1, 3, 1],
    ),
    "other forms that the standard allows": (
        [
            ": ping\n",
            "\n",
            "event: message\r\n",
            *(line.replace("data: ", "data:") for line in piece("a", "length")),
            *final(1),
        ],
        [1],
    ),
}


@pytest.mark.parametrize(("lines", "counts"), STREAMS.values(), ids=STREAMS)
def test_tokens_are_counted(lines: list[str], counts: list[int]) -> None:
    seen = TokenCounts()
    assert [new for line in lines if (new := seen.read(line))] == counts
    seen.check_end()


BROKEN = {
    "nothing": [],
    "no end": piece("a"),
    "no count": piece("a", "length"),
    "a count so far": piece("a", **usage(1)),
    "an event cut short": [*piece("a", "length"), *final(1)[:1]],
}


@pytest.mark.parametrize("lines", BROKEN.values(), ids=BROKEN)
def test_a_stream_that_breaks_off_is_a_failure(lines: list[str]) -> None:
    seen = TokenCounts()
    for line in lines:
        seen.read(line)
    with pytest.raises(RequestFailed) as caught:
        seen.check_end()
    assert caught.value.kind == "CutStream"


def test_an_error_in_the_stream_is_a_failure() -> None:
    counts = TokenCounts()
    data, end = event('{"error": {"message": "no room", "code": 503}}')
    assert counts.read(data) == 0
    with pytest.raises(RequestFailed, match="no room") as caught:
        counts.read(end)
    assert caught.value.kind == "ErrorEvent"


def test_a_refusal_is_told_by_its_status() -> None:
    assert refusal(429, "too many").kind == "Status429"
    assert "too many" in str(refusal(429, "too many"))


def test_who_asks_is_sent_where_it_is_known() -> None:
    request = PlannedRequest(0.0, 1, 1, 1)
    assert {"user", "priority"}.isdisjoint(completion_body("llm", request, [1]))
    known = completion_body("llm", replace(request, tenant="ann", priority=2), [1])
    assert known.items() >= {("user", "ann"), ("priority", 2)}


def test_an_answer_has_its_length_and_its_sampling() -> None:
    body = completion_body("llm", PlannedRequest(0.0, 1, 9, 9, temperature=1.0, top_p=0.95), [1])
    assert body.items() >= {("max_tokens", 9), ("ignore_eos", True), ("temperature", 1.0), ("top_p", 0.95)}
    assert body.items() >= {("top_k", 0), ("min_p", 0.0), ("repetition_penalty", 1.0)}
