"""POST /v1/completions with OpenAI's own client."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI

from tests.gateway.gateway_process import GatewayProcess


def arrived(client: OpenAI, **fields: Any) -> dict[str, Any]:
    """Return the sampling parameters that the server received."""
    request = json.loads(client.completions.create(model="llm", prompt="!request", **fields).choices[0].text)
    parameters: dict[str, Any] = json.loads(request["sampling_parameters"])
    return parameters


def test_answer_of_one_prompt(client: OpenAI) -> None:
    answer = client.completions.create(model="llm", prompt="one two three")
    assert answer.object == "text_completion"
    assert answer.model == "llm"
    (choice,) = answer.choices
    assert (choice.index, choice.text, choice.finish_reason, choice.logprobs) == (0, "one two three ", "stop", None)
    usage = answer.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 3, 6)


@pytest.mark.parametrize(
    ("path", "asked"),
    [("completions", {"prompt": "one two"}), ("chat/completions", {"messages": [{"role": "user", "content": "one"}]})],
)
@pytest.mark.parametrize("logprobs", [{}, {"prompt_logprobs": 2}, {"logprobs": 1}])
def test_answers_with_logprobs_are_written_in_pieces(
    gateway: GatewayProcess, path: str, asked: dict[str, Any], logprobs: dict[str, Any]
) -> None:
    # Others are served between the pieces.
    if path.startswith("chat") and "logprobs" in logprobs:
        logprobs = {"logprobs": True}
    response = httpx.post(f"{gateway.url}/v1/{path}", json={**asked, "model": "llm", **logprobs})
    answer = response.json()
    assert ("content-length" in response.headers) == (not logprobs)
    assert response.headers["content-type"] == "application/json"
    assert response.text == json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
    assert answer["choices"][0]["finish_reason"] == "stop"
    scored = answer if path.startswith("chat") else answer["choices"][0]
    assert ("prompt_logprobs" in scored) == ("prompt_logprobs" in logprobs)


def test_max_tokens_ends_with_length(client: OpenAI) -> None:
    (choice,) = client.completions.create(model="llm", prompt="one two three", max_tokens=2).choices
    assert (choice.text, choice.finish_reason) == ("one two ", "length")


def test_prompts_are_answered_in_their_order(client: OpenAI) -> None:
    answer = client.completions.create(model="llm", prompt=["!gap 100 one two", "three"])
    assert [(choice.index, choice.text) for choice in answer.choices] == [(0, "one two "), (1, "three ")]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3


@pytest.mark.parametrize("prompt", [[5, 6], [[5, 6], [7]]])
def test_token_ids(client: OpenAI, prompt: Any) -> None:
    # The echo model answers with the list of token ids as text.
    texts = [choice.text.replace(" ", "") for choice in client.completions.create(model="llm", prompt=prompt).choices]
    assert texts == (["[5,6]"] if prompt == [5, 6] else ["[5,6]", "[7]"])


def test_the_callers_trace_context_goes_on_to_the_model(client: OpenAI) -> None:
    context = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-00", "tracestate": "vendor=1"}
    assert context.items() <= arrived(client, extra_headers=context).items()
    assert not context.keys() & arrived(client).keys()
    assert not context.keys() & arrived(client, extra_headers={"traceparent": "no such thing"}).keys()


def test_stream(client: OpenAI) -> None:
    with client.completions.create(model="llm", prompt="one two", stream=True) as stream:
        chunks = list(stream)
    assert [chunk.choices[0].text for chunk in chunks] == ["one ", "two ", ""]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, "stop"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


def test_stream_ends_with_usage_where_asked_for(gateway: GatewayProcess) -> None:
    body = {"model": "llm", "prompt": "one two", "stream": True, "stream_options": {"include_usage": True}}
    response = httpx.post(f"{gateway.url}/v1/completions", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, done = response.text.strip().split("\n\n")
    *pieces, last = [json.loads(event.removeprefix("data: ")) for event in events]
    assert done == "data: [DONE]"
    assert [piece["usage"] for piece in pieces] == [None, None, None]
    assert last["choices"] == []
    count = {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}
    assert last["usage"] == {**count, "prompt_tokens_details": {"cached_tokens": 0}}


def test_prompts_stream_side_by_side(client: OpenAI) -> None:
    prompts = ["!gap 200 one two", "three", "four five"]
    with client.completions.create(model="llm", prompt=prompts, stream=True) as stream:
        chunks = [chunk.choices[0] for chunk in stream]
    texts = ["".join(chunk.text for chunk in chunks if chunk.index == index) for index in range(3)]
    assert texts == ["one two ", "three ", "four five "]
    # The slow prompt does not delay the others.
    assert [chunk.index for chunk in chunks if chunk.finish_reason][-1] == 0


def test_32_streams_at_once(gateway: GatewayProcess) -> None:
    async def text(number: int) -> str:
        stream = await client.completions.create(model="llm", prompt=f"!gap 5 a b c {number}", stream=True)
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def texts() -> list[str]:
        async with client:
            return await asyncio.gather(*map(text, range(32)))

    client = gateway.async_openai()
    assert asyncio.run(texts()) == [f"a b c {number} " for number in range(32)]


def test_defaults_are_openai_s(client: OpenAI) -> None:
    parameters = arrived(client)
    assert parameters["temperature"] == 1
    assert parameters["max_tokens"] == 16
    assert not {"top_p", "stop", "seed", "logit_bias", "tenant", "priority", "logprobs"} & parameters.keys()


def test_fields_reach_the_server(client: OpenAI) -> None:
    fields = {
        "n": 1,
        "max_tokens": 7,
        "temperature": 0,
        "top_p": 0.5,
        "seed": 3,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "logprobs": 2,
    }
    ours = {
        "top_k": 4,
        "min_p": 0.1,
        "repetition_penalty": 1.5,
        "min_tokens": 1,
        "ignore_eos": True,
        "stop_token_ids": [9],
        "logprob_token_ids": [5, 6],
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "bad_words": ["worse"],
        "allowed_token_ids": [4, 9],
        "cache_salt": "mine",
        "priority": 2,
    }
    parameters = arrived(client, stop="end", logit_bias={"5": -3}, user="ann", best_of=1, extra_body=ours, **fields)
    expected = {**fields, **ours, "stop": ["end"], "logit_bias": {"5": -3.0}, "tenant": "ann"}
    assert {name: parameters[name] for name in expected} == expected


def test_answers_have_their_tokens_if_they_are_asked_for(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": "llm", "prompt": [[5, 6], [7]], "max_tokens": 2}
    answer = client.completions.create(**asked, extra_body={"return_token_ids": True})
    # A token of this model is the length of a word and the space after it. It reads the prompt as `[5, 6]`.
    assert [choice.to_dict()["token_ids"] for choice in answer.choices] == [[4, 3], [4]]
    assert [choice.to_dict()["prompt_token_ids"] for choice in answer.choices] == [[4, 3], [4]]
    assert "token_ids" not in client.completions.create(**asked).choices[0].to_dict()


def test_streamed_answers_have_their_tokens_if_they_are_asked_for(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": "llm", "prompt": [[5, 6], [7]], "max_tokens": 2, "stream": True}
    tokens: dict[int, list[int]] = {0: [], 1: []}
    prompts = []
    for chunk in client.completions.create(**asked, extra_body={"return_token_ids": True}):
        choice: dict[str, Any] = chunk.choices[0].to_dict()
        tokens[choice["index"]] += choice["token_ids"]
        if "prompt_token_ids" in choice:
            prompts.append((choice["index"], choice["prompt_token_ids"]))
    assert tokens == {0: [4, 3], 1: [4]}
    assert sorted(prompts) == [(0, [4, 3]), (1, [4])]


def test_negative_seed_is_one_of_the_server_s(client: OpenAI) -> None:
    assert arrived(client, seed=-1)["seed"] == 2**64 - 1


def test_an_echo_begins_with_the_prompt(client: OpenAI) -> None:
    answer = client.completions.create(
        model="llm", prompt=["one two", "three"], max_tokens=1, echo=True, logprobs=1, temperature=0
    )
    assert [choice.text for choice in answer.choices] == ["one twoone ", "threethree "]
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    # The echo model has no log-probabilities of what it generates.
    assert logprobs.tokens == ["one ", "two "]
    assert logprobs.token_logprobs == [None, -0.5]
    assert logprobs.top_logprobs == [None, {"two ": -0.5}]
    assert logprobs.text_offset == [0, 4]


def test_an_echo_may_be_all(client: OpenAI) -> None:
    for fields in ({"logprobs": 0}, {}):
        (choice,) = client.completions.create(model="llm", prompt=[5, 6], max_tokens=0, echo=True, **fields).choices
        assert (choice.text, choice.finish_reason) == ("[5, 6]", "length")
        assert (choice.logprobs is None) == (not fields)


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        ({"max_tokens": 0}, "max_tokens is 0: it must be at least 1 unless echo is true", "max_tokens"),
        ({"echo": True, "stream": True}, "echo is True: it must be false or absent if stream is true", "echo"),
        (
            {"extra_body": {"logprob_token_ids": [5]}},
            "logprob_token_ids is given; logprobs must be given, too",
            "logprob_token_ids",
        ),
    ],
)
def test_fields_that_do_not_fit_together(client: OpenAI, fields: Any, message: str, param: str) -> None:
    with pytest.raises(BadRequestError, match=message) as caught:
        client.completions.create(model="llm", prompt="one", **fields)
    assert caught.value.param == param


def test_fields_that_ask_for_nothing_are_taken(client: OpenAI) -> None:
    harmless = {"store": False, "metadata": {"a": "b"}, "service_tier": "auto", "prompt_cache_key": "a"}
    harmless |= {"spaces_between_special_tokens": True, "add_special_tokens": True}
    assert client.completions.create(model="llm", prompt="one", echo=False, extra_body=harmless).choices[0].text


def test_a_prompt_may_have_its_special_tokens_already(client: OpenAI) -> None:
    """The server gets tokens then, as it would add its own to a text. A token of the echo model is a character."""
    tokens = [2**20 + ord(character) for character in "!request"]
    for prompt in ("!request", tokens):
        answer = client.completions.create(model="llm", prompt=prompt, extra_body={"add_special_tokens": False})
        assert json.loads(answer.choices[0].text)["input_ids"] == tokens
    assert json.loads(client.completions.create(model="llm", prompt="!request").choices[0].text)["text_input"]
