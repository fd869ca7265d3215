"""POST /v1/messages and POST /v1/messages/count_tokens."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from inflight_client import InvalidRequest, Sampling
from inflight_gateway import sse
from inflight_gateway.answer_form import AnswerForm
from inflight_gateway.asked_form import invalid
from inflight_gateway.chat_plan import ChatAsk, ChatPlan, plan_chat
from inflight_gateway.errors import ApiError
from inflight_gateway.field_names import naming_fields
from inflight_gateway.formats import Formats
from inflight_gateway.json_route import JsonRoute
from inflight_gateway.limits import take_samples
from inflight_gateway.messages_api.context_window import EXCEEDED, is_too_much, naming_length
from inflight_gateway.messages_api.conversation import continues, images_of, messages_of
from inflight_gateway.messages_api.document import (
    ErrorDocument,
    MessageDocument,
    TokenCount,
    error_document,
    new_message,
    usage_count,
)
from inflight_gateway.messages_api.output import Content, Event
from inflight_gateway.messages_api.request import (
    Conversation,
    CountTokensRequest,
    MessagesRequest,
    OneToolChoice,
    ToolItem,
)
from inflight_gateway.messages_api.thinking import effort_variables, thinking_variables
from inflight_gateway.sampling import queueing, temperature, tenant_of
from inflight_gateway.schemas import ALL_TOKENS
from inflight_gateway.service import Service, TheService
from inflight_gateway.shown_chat import shown_chat
from inflight_gateway.streaming import Answers, begin
from inflight_gateway.tool_formats import Tool
from inflight_gateway.tool_use import ToolUse, named_tools, use_of
from inflight_gateway.tracing import note_request

_STATUSES: tuple[int | str, ...] = (400, 401, 404, 408, 413, 429, 500, 503, 504, "4XX")
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorDocument, "description": "An error in Anthropic's format"} for status in _STATUSES
}
# Fields of the server, with those that they come from.
_FIELDS = {"stop": "stop_sequences", "continue_final_message": "messages", "images": "messages"}
_NOT_ENDED: dict[str, str | None] = {"stop_reason": None, "stop_sequence": None}

router = APIRouter(responses=_ERRORS, route_class=JsonRoute)


@router.post(
    "/v1/messages",
    response_model=None,
    responses={200: {"model": MessageDocument, "description": "The answer", "content": sse.DOCUMENTATION}},
)
async def create_message(body: MessagesRequest, service: TheService, request: Request) -> Response:
    """Answer a conversation."""
    adapter = await service.adapter(body.model)
    note_request("chat", body.model, stream=bool(body.stream))
    take_samples(request.scope, 1)
    asked = _sampling(body, request, adapter)
    with naming_length(), naming_fields(_FIELDS):
        plan = await plan_chat(service.client, *await _ask(body, service, asked.get("tenant")))
    with naming_length(), naming_fields({**_FIELDS, **plan.names}):
        if body.stream:
            return await begin(_events(body, service, plan, asked), service.metrics, _error_event)
        try:
            answer = await service.client.generate(**plan.arguments(asked))
        except InvalidRequest as error:
            if not is_too_much(error):
                raise
            asked = {**asked, "max_tokens": ALL_TOKENS}
            answer = await service.client.generate(**plan.arguments(asked))
    (choice,) = answer.choices
    service.answered(answer.usage, [choice.finish_reason])
    reader, content = plan.reader(), Content()
    for _ in (*content.add([*reader.feed(choice.text), *reader.end()]), *content.close()):
        pass  # The events are for streams.
    ending = _ending(asked, content, choice.finish_reason, choice.stop_reason)
    return JSONResponse({**new_message(body.model, answer.usage), "content": content.blocks, **ending})


@router.post("/v1/messages/count_tokens")
async def count_tokens(body: CountTokensRequest, service: TheService, request: Request) -> TokenCount:
    """Count the tokens of a conversation as the model would get it."""
    await service.adapter(body.model)
    formats, ask = await _ask(body, service, tenant_of(request.scope, body.user))
    if ask.images:
        raise invalid("messages", "messages has images, whose tokens are not known before the model reads them")
    chat = shown_chat(ask.messages, ask.tools.tools if ask.tools is not None else (), ask.template_kwargs, formats)
    with naming_length(), naming_fields(_FIELDS):
        found = await service.client.tokenize(**{**chat.arguments(), **ask.chat_end}, tenant=ask.tenant)
    return {"input_tokens": len(found.token_ids)}


async def _events(
    body: MessagesRequest, service: Service, plan: ChatPlan, asked: Sampling
) -> AsyncGenerator[bytes, None]:
    """Yield the events of an answer. They may begin so late that a refusal has become an event, too."""
    with naming_length():
        try:
            async with aclosing(_events_within(body, service, plan, asked)) as events:
                async for event in events:
                    yield event
            return
        except InvalidRequest as error:
            if not is_too_much(error):
                raise
        async with aclosing(_events_within(body, service, plan, {**asked, "max_tokens": ALL_TOKENS})) as events:
            async for event in events:
                yield event


async def _events_within(
    body: MessagesRequest, service: Service, plan: ChatPlan, asked: Sampling
) -> AsyncGenerator[bytes, None]:
    answers = Answers([service.client.stream(**plan.arguments(asked))])
    reader, content = plan.reader(), Content()
    begun, ending = False, _NOT_ENDED
    async with aclosing(answers.chunks()) as chunks:
        async for _, chunk in chunks:
            if not begun:  # Not before the server has accepted the request.
                begun = True
                yield _encoded({"type": "message_start", "message": new_message(body.model, answers.usage)})
            for event in content.add(reader.feed(chunk.text)):
                yield _encoded(event)
            if chunk.finish_reason is not None:
                for event in (*content.add(reader.end()), *content.close()):
                    yield _encoded(event)
                ending = _ending(asked, content, chunk.finish_reason, chunk.stop_reason)
    service.answered(answers.usage, answers.finish_reasons)
    yield _encoded({"type": "message_delta", "delta": ending, "usage": usage_count(answers.usage)})
    yield _encoded({"type": "message_stop"})


def _encoded(event: Event) -> bytes:
    return sse.named_event(event["type"], event)


def _error_event(error: ApiError) -> bytes:
    return sse.named_event("error", {**error_document(error.status_code, error.detail)})


def _ending(
    asked: Sampling, content: Content, finish_reason: str, stop_reason: str | int | None
) -> dict[str, str | None]:
    """Say why the answer ended."""
    if finish_reason == "length":
        fills_context = asked.get("max_tokens") == ALL_TOKENS
        return {"stop_reason": EXCEEDED if fills_context else "max_tokens", "stop_sequence": None}
    if isinstance(stop_reason, str) and stop_reason in asked.get("stop", ()):
        return {"stop_reason": "stop_sequence", "stop_sequence": stop_reason}
    return {"stop_reason": "tool_use" if content.has_calls else "end_turn", "stop_sequence": None}


async def _ask(body: Conversation, service: Service, tenant: str | None) -> tuple[Formats, ChatAsk]:
    formats = await service.model.formats()
    variables = thinking_variables(body.thinking, formats) | effort_variables(body.output_config, formats)
    form = body.output_config.format if body.output_config is not None else None
    return formats, ChatAsk(
        messages=messages_of(body),
        form=None if form is None else AnswerForm("output_config.format", "json", form.schema_),
        tools=_tool_use(body),
        template_kwargs=(body.chat_template_kwargs or {}) | variables,
        chat_end={"continue_final_message": True} if continues(body) else {},
        images=images_of(body),
        continued_by="messages",
        thoughts_as="blocks of the type thinking",
        tenant=tenant,
    )


def _tool_use(body: Conversation) -> ToolUse | None:
    tools = named_tools((f"tools[{index}].name", _tool(tool)) for index, tool in enumerate(body.tools or ()))
    choice = body.tool_choice
    if choice is None:
        return use_of(tools, "auto", None, several=True)
    several = not choice.disable_parallel_tool_use
    if isinstance(choice, OneToolChoice):
        return use_of(tools, "required", [choice.name], several=several)
    return use_of(tools, "required" if choice.type == "any" else choice.type, None, several=several)


def _tool(tool: ToolItem) -> Tool:
    return Tool(tool.name, parameters=tool.input_schema, description=tool.description, strict=bool(tool.strict))


def _sampling(body: MessagesRequest, request: Request, adapter: str | None) -> Sampling:
    asked: dict[str, Any] = {
        "max_tokens": body.max_tokens,
        "temperature": temperature(body.temperature),
        "top_p": body.top_p,
        "top_k": body.top_k,
        "stop": body.stop_sequences,
    }
    author = body
    if not body.user and body.metadata is not None:
        author = body.model_copy(update={"user": body.metadata.tenant})
    given = {name: value for name, value in asked.items() if value is not None}
    return cast(Sampling, given | queueing(author, request.scope, adapter))
