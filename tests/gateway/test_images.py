"""Images in each API of the gateway: the answers are those of transformers' `generate`."""

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import Anthropic
from anthropic import BadRequestError as AnthropicError
from openai import BadRequestError, OpenAI

from tests.gateway.gateway_process import GatewayProcess
from tests.images import picture
from tests.served_images import NUM_TOKENS, ServedImages

PICTURES = [picture(1, 70, 50), picture(2, 30, 90, "JPEG")]
SHOWN = "<|im_start|>user\n<image> and <image>: which is larger?<|im_end|>\n<|im_start|>assistant\n"


def url(image: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"


def part(image: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url(image), "detail": "low"}}


def block(image: bytes) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(image).decode()}
    return {"type": "image", "source": source}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedImages]:
    with ServedImages.start(tmp_path_factory.mktemp("served")) as served:
        yield served


@pytest.fixture(scope="module")
def gateway(served: ServedImages) -> Iterator[GatewayProcess]:
    with GatewayProcess(served.server.grpc_url) as gateway:
        gateway.wait_for(["/health"], 30)
        yield gateway


@pytest.fixture(scope="module")
def openai(gateway: GatewayProcess) -> OpenAI:
    return gateway.openai()


def chat(*content: dict[str, Any], role: str = "user") -> dict[str, Any]:
    return {"model": "llm", "temperature": 0, "messages": [{"role": role, "content": list(content)}]}


CONTENT = (part(PICTURES[0]), {"type": "text", "text": " and "}, part(PICTURES[1]))
QUESTION = {"type": "text", "text": ": which is larger?"}


def test_a_chat(served: ServedImages, openai: OpenAI) -> None:
    asked = chat(*CONTENT, QUESTION) | {"max_tokens": NUM_TOKENS}
    answer = openai.chat.completions.create(**asked)
    assert answer.choices[0].message.content == served.expected(SHOWN, PICTURES)
    chunks = openai.chat.completions.create(**asked, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == answer.choices[0].message.content


def test_a_response(served: ServedImages, openai: OpenAI) -> None:
    content: list[Any] = [
        {"type": "input_image", "image_url": url(PICTURES[0])},
        {"type": "input_text", "text": " and "},
        {"type": "input_image", "image_url": url(PICTURES[1]), "detail": "auto"},
        {"type": "input_text", "text": ": which is larger?"},
    ]
    answer = openai.responses.create(
        model="llm",
        input=[{"role": "user", "content": content}],
        max_output_tokens=NUM_TOKENS,
        temperature=0,
        store=False,
    )
    assert answer.output_text == served.expected(SHOWN, PICTURES)


def test_a_message(served: ServedImages, gateway: GatewayProcess) -> None:
    content: list[Any] = [block(PICTURES[0]), {"type": "text", "text": " and "}, block(PICTURES[1]), QUESTION]
    asked: Any = {"model": "llm", "messages": [{"role": "user", "content": content}]}
    with Anthropic(base_url=gateway.url, api_key="none", max_retries=0) as anthropic:
        answer = anthropic.messages.create(**asked, max_tokens=NUM_TOKENS, extra_body={"temperature": 0})
        with pytest.raises(AnthropicError, match="messages has images, whose tokens are not known"):
            anthropic.messages.count_tokens(**asked)
    (text,) = answer.content
    assert text.type == "text"
    assert text.text == served.expected(SHOWN, PICTURES)


def test_images_that_tools_return(gateway: GatewayProcess, openai: OpenAI) -> None:
    """They follow the results in a message of the user. Coding agents look at files in this way."""
    names, texts = ("a", "b"), ("The first.", "The second.")
    calls: list[Any] = [
        {"id": name, "type": "function", "function": {"name": "look", "arguments": "{}"}} for name in names
    ]
    tool: Any = {"name": "look", "parameters": {"type": "object"}}
    begun: Any = {"role": "user", "content": "Look."}
    expected = openai.chat.completions.create(
        **{
            **chat(),
            "max_tokens": NUM_TOKENS,
            "tools": [{"type": "function", "function": tool}],
            "messages": [
                begun,
                {"role": "assistant", "content": "", "tool_calls": calls},
                *({"role": "tool", "tool_call_id": n, "content": t} for n, t in zip(names, texts, strict=True)),
                {"role": "user", "content": [part(image) for image in PICTURES]},
            ],
        }
    )
    items: list[Any] = [{"type": "function_call", "call_id": name, "name": "look", "arguments": "{}"} for name in names]
    results: list[Any] = [
        {
            "type": "function_call_output",
            "call_id": name,
            "output": [{"type": "input_text", "text": text}, {"type": "input_image", "image_url": url(image)}],
        }
        for name, text, image in zip(names, texts, PICTURES, strict=True)
    ]
    response = openai.responses.create(
        model="llm",
        input=[begun, *items, *results],
        tools=[{"type": "function", "strict": False, **tool}],
        max_output_tokens=NUM_TOKENS,
        temperature=0,
    )
    assert response.output_text == expected.choices[0].message.content
    uses: list[Any] = [{"type": "tool_use", "id": name, "name": "look", "input": {}} for name in names]
    answers: list[Any] = [
        {"type": "tool_result", "tool_use_id": name, "content": [{"type": "text", "text": text}, block(image)]}
        for name, text, image in zip(names, texts, PICTURES, strict=True)
    ]
    with Anthropic(base_url=gateway.url, api_key="none", max_retries=0) as anthropic:
        message = anthropic.messages.create(
            model="llm",
            messages=[begun, {"role": "assistant", "content": uses}, {"role": "user", "content": answers}],
            tools=[{"name": "look", "input_schema": {"type": "object"}}],
            max_tokens=NUM_TOKENS,
            extra_body={"temperature": 0},
        )
    (said,) = message.content
    assert said.type == "text"
    assert said.text == expected.choices[0].message.content


def test_a_picture_that_is_none_is_refused_by_the_name_of_its_field(gateway: GatewayProcess, openai: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="messages is refused: images") as caught:
        openai.chat.completions.create(**chat(part(b"no picture")))
    assert caught.value.param == "messages"
    item: Any = {"role": "user", "content": [{"type": "input_image", "image_url": url(b"no picture")}]}
    with pytest.raises(BadRequestError, match="input is refused: images") as caught:
        openai.responses.create(model="llm", input=[item])
    assert caught.value.param == "input"
    asked: Any = {"model": "llm", "messages": [{"role": "user", "content": [block(b"no picture")]}], "max_tokens": 1}
    with (
        Anthropic(base_url=gateway.url, api_key="none", max_retries=0) as anthropic,
        pytest.raises(AnthropicError, match="messages is refused: images"),
    ):
        anthropic.messages.create(**asked)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (chat({"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}}), "it must be a data URL"),
        (chat({"type": "image_url", "image_url": {"url": "data:image/png;base64,?"}}), "is not valid base64"),
        (chat(part(b"no picture")), r"images\[0\] is no file in one of the formats"),
        (chat(part(PICTURES[0]), role="assistant"), "it must have no images unless role is user"),
    ],
)
def test_what_is_no_image_is_refused(openai: OpenAI, asked: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequestError, match=says):
        openai.chat.completions.create(**asked)
