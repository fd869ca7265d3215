"""Log-probabilities in /v1/responses, with OpenAI's own client: those of chats, but only of the tokens of messages."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI
from openai.types.responses import Response

from inflight_gateway.chat_plan import ChatPlan
from inflight_gateway.logprobs import parts_of
from inflight_gateway.reasoning import REASONING_FORMATS
from inflight_gateway.responses_api.output import COMPLETED, Event, Output
from inflight_gateway.tool_formats import FORMATS, Tool
from scripts.launch.triton_server import TritonServer
from tests.gateway.gateway_process import GatewayProcess

ASKED = [{"role": "user", "content": "What is the capital of France?"}]
INCLUDE: list[Any] = ["message.output_text.logprobs"]


@pytest.fixture(scope="module")
def real_gateway(real_server: TritonServer) -> Iterator[GatewayProcess]:
    with GatewayProcess(real_server.grpc_url, f"--metrics-url={real_server.metrics_url}") as gateway:
        gateway.wait_for(["/health"], 30)
        yield gateway


@pytest.fixture(scope="module")
def client(real_gateway: GatewayProcess) -> Iterator[OpenAI]:
    with real_gateway.openai() as client:
        yield client


def respond(client: OpenAI, **fields: Any) -> Any:
    defaults = {"model": "llm", "input": ASKED, "temperature": 0, "max_output_tokens": 24, "include": INCLUDE}
    return client.responses.create(**{**defaults, **fields})


def logprobs_of(response: Response) -> list[dict[str, Any]]:
    (message,) = response.output
    assert message.type == "message"
    (part,) = message.content
    assert part.type == "output_text"
    return [entry.model_dump() for entry in part.logprobs or []]


def in_a_chat(client: OpenAI, **fields: Any) -> list[dict[str, Any]]:
    messages: Any = fields.pop("messages", ASKED)
    answer = client.chat.completions.create(
        model="llm", messages=messages, temperature=0, max_tokens=24, logprobs=True, **fields
    )
    scores = answer.choices[0].logprobs
    assert scores is not None
    return [entry.model_dump() for entry in scores.content or []]


@pytest.mark.parametrize("count", [None, 0, 3, 20])
def test_they_are_those_of_chats(client: OpenAI, count: int | None) -> None:
    response = respond(client, top_logprobs=count)
    entries = logprobs_of(response)
    assert response.top_logprobs == (count or 0)
    assert {len(entry["top_logprobs"]) for entry in entries} == {count or 0}
    expected = in_a_chat(client, top_logprobs=count)
    assert [entry["token"] for entry in entries] == [entry["token"] for entry in expected]
    for entry, other in zip(entries, expected, strict=True):
        assert entry["logprob"] == pytest.approx(other["logprob"], abs=1e-4)
        assert [token["logprob"] for token in entry["top_logprobs"]] == pytest.approx(
            [token["logprob"] for token in other["top_logprobs"]], abs=1e-4
        )
    assert response.usage is not None
    assert response.usage.output_tokens == len(entries)


def test_a_stream_has_them_in_each_event_of_text(client: OpenAI) -> None:
    whole = logprobs_of(respond(client, top_logprobs=2))
    events = list(respond(client, top_logprobs=2, stream=True))
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    for event in deltas[:-1]:
        assert "".join(entry.token for entry in event.logprobs) == event.delta
    (done,) = [event for event in events if event.type == "response.output_text.done"]
    (part,) = [event.part for event in events if event.type == "response.content_part.done"]
    streamed = [entry.model_dump() for event in deltas for entry in event.logprobs]
    assert streamed == [entry.model_dump() for entry in done.logprobs]
    assert streamed == [entry.model_dump() for entry in part.logprobs] == logprobs_of(events[-1].response)
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in whole]
    assert [entry["logprob"] for entry in streamed] == pytest.approx([entry["logprob"] for entry in whole], abs=1e-4)


def test_tokens_that_are_no_whole_characters_have_no_bytes(client: OpenAI) -> None:
    """In chats these are null, which this API does not know."""
    asked: Any = [{"role": "user", "content": "Repeat: 東京 🗼 Łódź"}]
    entries = logprobs_of(respond(client, input=asked, top_logprobs=1))
    expected = in_a_chat(client, messages=asked, top_logprobs=1)
    assert any(entry["bytes"] is None for entry in expected)
    assert [entry["bytes"] for entry in entries] == [entry["bytes"] or [] for entry in expected]


def test_there_are_none_unless_they_are_asked_for(client: OpenAI) -> None:
    assert logprobs_of(respond(client, include=["reasoning.encrypted_content"], max_output_tokens=4)) == []


def test_a_message_with_them_can_be_sent_back(client: OpenAI) -> None:
    response = respond(client, top_logprobs=1, max_output_tokens=4)
    assert respond(client, input=[*ASKED, *response.output, *ASKED], max_output_tokens=4).status == "incomplete"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"include": INCLUDE, "top_logprobs": 21}, "21"),
        ({"include": INCLUDE, "top_logprobs": -1}, "-1"),
        ({"top_logprobs": 1}, "unless include has message.output_text.logprobs"),
    ],
)
def test_bounds(real_gateway: GatewayProcess, fields: Any, message: str) -> None:
    response = httpx.post(f"{real_gateway.url}/v1/responses", json={"model": "llm", "input": "a", **fields})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == "top_logprobs"
    assert message in response.json()["error"]["message"]


WRITTEN = '{"name": "weather", "arguments": {}}'
THINKS = ("think", "hermes")


@pytest.mark.parametrize("at_once", [1, 3, 9])
@pytest.mark.parametrize(
    ("formats", "tokens", "messages"),
    [
        (THINKS, ["Ul", "m", " <", " b", "<|im_end|>"], [["Ul", "m", " <", " b", "<|im_end|>"]]),
        (THINKS, ["<think>", "So", ".", "\n", "</think>", "\n\n", "Ul", "m"], [["Ul", "m"]]),
        (THINKS, ["<think>", "\n", "</think>", "\n\n", "Ul", "m"], [["Ul", "m"]]),
        (THINKS, ["Well", ".", "\n", "<tool_call>", WRITTEN, "</tool_call>", "<|im_end|>"], [["Well", "."]]),
        (
            THINKS,
            ["Well", ".", "<tool_call>", WRITTEN, "</tool_call>", "\n", "Do", "ne"],
            [["Well", "."], ["Do", "ne"]],
        ),
        (
            ("harmony", "harmony"),
            ["<|channel|>", "final", "<|message|>", "Ul", "m", "<|return|>"],
            [["Ul", "m", "<|return|>"]],
        ),
    ],
)
def test_only_the_tokens_of_a_message_are_in_it(
    formats: tuple[str, str], tokens: list[str], messages: list[list[str]], at_once: int
) -> None:
    """Also where several tokens come at once, as with drafts."""
    reasoning, tools = formats
    plan = ChatPlan({}, {"weather": Tool("weather")}, FORMATS[tools], REASONING_FORMATS[reasoning], False, {})
    reader, output = plan.reader(), Output({})
    events: list[Event] = []
    for first in range(0, len(tokens), at_once):
        chunk = tokens[first : first + at_once]
        text = "".join(chunk).removesuffix("<|im_end|>")
        scores: list[Any] = [{"token": one, "logprob": -1.0, "bytes": [], "top_logprobs": []} for one in chunk]
        for part, own in parts_of(text, scores):
            events += output.add(reader.feed(part), own)
    events += [*output.add(reader.end()), *output.close(COMPLETED)]
    found = [item["content"][0] for item in output.items if item["type"] == "message"]
    assert [[entry["token"] for entry in part["logprobs"]] for part in found] == messages
    deltas = [event["logprobs"] for event in events if event["type"] == "response.output_text.delta"]
    assert [entry for delta in deltas for entry in delta] == [entry for part in found for entry in part["logprobs"]]


def test_text_is_divided_at_its_tokens() -> None:
    def divided(text: str, *tokens: str) -> list[str]:
        scores: list[Any] = [{"token": one, "logprob": -1.0, "bytes": [], "top_logprobs": []} for one in tokens]
        parts = parts_of(text, scores)
        assert [own["token"] for _, each in parts for own in each] == list(tokens)
        return [part for part, _ in parts]

    assert divided("Ulm") == ["Ulm"]
    assert divided("Ulm", "Ul", "m", "<|im_end|>") == ["Ul", "m", ""]
    assert divided("東", "\ufffd", "\ufffd", "\ufffd") == ["", "", "東"]
    assert divided("東 Ulm", "\ufffd", " Ul", "m") == ["", "", "東 Ulm"]
