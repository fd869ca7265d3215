"""What the assistant says before and after its calls is one message of the chat, which their results follow."""

from typing import Any

from inflight_gateway.messages_api import conversation as messages_api
from inflight_gateway.messages_api.request import MessagesRequest
from inflight_gateway.responses_api import conversation as responses_api
from inflight_gateway.responses_api.request import ResponsesRequest

CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "r"}
SHOWN_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def said(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "content": [{"type": "reasoning_text", "text": text}]}


def shown(*items: dict[str, Any]) -> list[Any]:
    return list(responses_api.messages_of(ResponsesRequest.model_validate({"model": "llm", "input": list(items)})))


def test_items_of_a_response_that_surround_a_call() -> None:
    before, after = (thought("A."), said("B.")), (thought("C."), said("D."))
    message, result = shown(*before, CALL, *after, RESULT)
    assert message == {
        "role": "assistant",
        "content": "B.\nD.",
        "reasoning_content": "A.\nC.",
        "tool_calls": [SHOWN_CALL],
    }
    assert result["role"] == "tool"
    assert [one["content"] for one in shown(CALL, said("B."), RESULT)] == ["B.", "r"]


def test_messages_without_calls_stay_apart_and_a_result_ends_a_turn() -> None:
    assert [one["content"] for one in shown(said("A."), said("B."))] == ["A.", "B."]
    assert [one["content"] for one in shown(CALL, RESULT, said("A."))] == ["", "r", "A."]


def test_texts_of_the_assistant_are_joined_by_line_breaks() -> None:
    blocks = [{"type": "text", "text": "A."}, {"type": "tool_use", "id": "c", "name": "f", "input": {}}]
    blocks.append({"type": "text", "text": "B."})
    messages = [{"role": "assistant", "content": blocks}, {"role": "user", "content": "C."}]
    body = MessagesRequest.model_validate({"model": "llm", "max_tokens": 1, "messages": messages})
    message, _ = messages_api.messages_of(body)
    assert message == {"role": "assistant", "content": "A.\nB.", "tool_calls": [SHOWN_CALL]}
