"""Errors of a chat name fields that the request has and that its API knows."""

import asyncio
from typing import Any

import pytest

from inflight_client import AsyncClient, Message, ModelDescription
from inflight_gateway.answer_form import AnswerForm
from inflight_gateway.chat_plan import ChatAsk, ChatPlan, plan_chat
from inflight_gateway.errors import ApiError
from inflight_gateway.formats import AUTO, NONE, Formats
from inflight_gateway.tool_formats import Tool
from inflight_gateway.tool_use import ToolUse

MODEL = ModelDescription(
    model="llm",
    vocab_size=10,
    max_model_len=10,
    chat_template="{{ messages }}{{ tools }}<think><tool_call>",
    template_variables=("messages", "tools"),
    special_tokens={},
    eos_token_ids=(),
    max_draft_input_ids=0,
    lora_modules=(),
)
USER: list[Message] = [{"role": "user", "content": "one"}]
FORM = AnswerForm("response_format", "json_object", True)
TOOLS = ToolUse((Tool("f"),), (Tool("f"),), required=False, several=True)


def plan(ask: ChatAsk, reasoning: str) -> ChatPlan:
    """No server is asked."""

    async def planned() -> ChatPlan:
        async with AsyncClient("127.0.0.1:1") as client:
            return await plan_chat(client, Formats.of(MODEL, AUTO, reasoning), ask)

    return asyncio.run(planned())


@pytest.mark.parametrize(
    ("ask", "field"),
    [
        (ChatAsk(USER, FORM, TOOLS, {"a": 1}), "response_format"),
        (ChatAsk(USER, None, TOOLS, {"a": 1}), "tools"),
        (ChatAsk(USER, None, None, {"a": 1}), "chat_template_kwargs"),
        (ChatAsk(USER, None, None), None),
    ],
)
def test_parameters_that_are_too_large_are_named_as_a_field_of_the_request(ask: ChatAsk, field: str | None) -> None:
    assert plan(ask, NONE).names.get("sampling_parameters") == field


@pytest.mark.parametrize(
    ("named", "param", "advice"),
    [
        ({}, "continue_final_message", "give thoughts as reasoning_content"),
        ({"continued_by": "messages", "thoughts_as": "blocks"}, "messages", "give thoughts as blocks"),
    ],
)
def test_a_thought_that_cannot_be_continued(named: dict[str, Any], param: str, advice: str) -> None:
    messages: list[Message] = [*USER, {"role": "assistant", "content": "<think> So"}]
    ask = ChatAsk(messages, None, None, chat_end={"continue_final_message": True}, **named)
    with pytest.raises(ApiError) as caught:
        plan(ask, AUTO)
    assert caught.value.param == param
    assert caught.value.detail == f"{param}: the last message must have no <think> and </think>; {advice}"
