"""How the gateway reads large bodies: their cost grows with their length alone, also where they are invalid."""

from typing import Any, NoReturn

import pytest
from pydantic import TypeAdapter, ValidationError

from inflight_gateway.chat_request import ChatRequest
from inflight_gateway.embedding_request import EmbeddingRequest
from inflight_gateway.images import PLACE, content_of
from inflight_gateway.messages_api.content import UserMessage
from inflight_gateway.messages_api.conversation import images_of
from inflight_gateway.messages_api.request import MessagesRequest
from inflight_gateway.responses_api.request import ResponsesRequest
from inflight_gateway.schemas import CompletionRequest
from inflight_gateway.scoring_requests import RankRequest, RerankRequest
from inflight_gateway.tokenize_request import DetokenizeRequest, TokenizeRequest

USER = [{"role": "user", "content": "one"}]
CHAT: dict[str, Any] = {"model": "llm", "messages": USER}
MANY = range(5000)


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


@pytest.mark.parametrize(
    ("body", "given"),
    [
        (CompletionRequest, {"model": "llm", "prompt": [1, *([] for _ in MANY)]}),
        (CompletionRequest, {"model": "llm", "prompt": [[1, *([] for _ in MANY)]]}),
        (CompletionRequest, {"model": "llm", "prompt": "a", "logit_bias": {str(i): "b" for i in MANY}}),
        (CompletionRequest, {"model": "llm", "prompt": "a", "metadata": {str(i): i for i in MANY}}),
        (CompletionRequest, {"model": "llm", "prompt": "a", **{f"x{i}": i for i in MANY}}),
        (ChatRequest, {**CHAT, "response_format": {"type": "structural_tag", "structures": [1 for _ in MANY]}}),
        (ChatRequest, {**CHAT, "response_format": {"type": "structural_tag", "triggers": [1 for _ in MANY]}}),
        (EmbeddingRequest, {"model": "llm", "input": [1, *([] for _ in MANY)]}),
        (DetokenizeRequest, {"tokens": [[] for _ in MANY]}),
        (TokenizeRequest, {"messages": [{"role": "user", "content": [1] * 4000}]}),
        (ChatRequest, {**CHAT, "messages": [{"role": "user", "content": [1] * 4000}]}),
        (ChatRequest, {**CHAT, "messages": [{"role": "user", "content": 1}] * 4000}),
        (ChatRequest, {**CHAT, "modalities": ["audio" for _ in MANY]}),
        (ResponsesRequest, {"model": "llm", "input": [{"role": "user", "content": [1] * 4000}] * 4}),
        (MessagesRequest, {**CHAT, "max_tokens": 1, "messages": [{"role": "user", "content": [1] * 4000}] * 4}),
    ],
)
def test_an_invalid_body_has_few_errors(body: Any, given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(body).validate_python(given)
    assert caught.value.error_count() <= 2


def test_the_first_unknown_field_is_named() -> None:
    with pytest.raises(ValidationError) as caught:
        ChatRequest.model_validate({**CHAT, "nothing": None, "first": 1, "second": 2})
    assert [error["loc"] for error in caught.value.errors()] == [("first",)]


@pytest.mark.parametrize("body", [ChatRequest, ResponsesRequest, MessagesRequest])
def test_a_message_has_at_most_4096_parts(body: Any) -> None:
    kind = "input_text" if body is ResponsesRequest else "text"
    content = [{"type": kind, "text": "a"}] * 4097
    messages = [{"role": "user", "content": content}]
    given = {"model": "llm", "max_tokens": 1, "messages": messages}
    if body is ResponsesRequest:
        given = {"model": "llm", "input": messages}
    with pytest.raises(ValidationError, match="at most 4096 items"):
        body.model_validate(given)
    content.pop()
    assert body.model_validate(given)


def test_an_instruction_is_a_variable_of_the_template() -> None:
    """As in vLLM, one among the variables counts more."""
    for variables, wanted in ((None, {"instruction": "a"}), ({"b": 1}, {"instruction": "a", "b": 1})):
        given = {"query": "a", "documents": ["b"], "instruction": "a", "chat_template_kwargs": variables}
        assert RerankRequest.model_validate(given).template_kwargs == wanted
    both = {"query": "a", "documents": ["b"], "instruction": "a", "chat_template_kwargs": {"instruction": "c"}}
    assert RerankRequest.model_validate(both).template_kwargs == {"instruction": "c"}
    assert RerankRequest.model_validate({"query": "a", "documents": ["b"]}).template_kwargs == {}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, {}),
        ({"truncate": False, "truncation_direction": "left"}, {}),
        ({"truncate": True}, {"truncate_prompt_tokens": -1, "truncation_side": "right"}),
        ({"truncate": True, "truncation_direction": "Left"}, {"truncate_prompt_tokens": -1, "truncation_side": "left"}),
        ({"truncate_prompt_tokens": 9}, {"truncate_prompt_tokens": 9, "truncation_side": "right"}),
    ],
)
def test_texts_to_rank_are_cut_to_the_context(given: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert RankRequest.model_validate({"query": "a", "texts": ["b"], **given}).truncation == wanted


def test_neighbouring_texts_are_one_part() -> None:
    assert content_of([]) == ""
    assert content_of(["a", "", "b"], "\n") == "a\n\nb"
    assert content_of(["a", "b", None, None, "c", "d"], "\n") == [*parts("a\nb"), PLACE, PLACE, *parts("c\nd")]


class _Text(str):
    """A text that must not be gone through character by character."""

    __slots__ = ()

    def __iter__(self) -> NoReturn:
        raise AssertionError("a text has no images")


def test_no_image_is_looked_for_in_a_text() -> None:
    message = UserMessage.model_construct(role="user", content=_Text("one"))
    body = MessagesRequest.model_construct(messages=[message])
    assert images_of(body) == []
