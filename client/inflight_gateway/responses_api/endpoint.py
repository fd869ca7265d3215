"""POST /v1/responses and POST /v1/responses/input_tokens."""

import itertools
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import cast

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from inflight_client import Sampling
from inflight_gateway import sse
from inflight_gateway.answer_form import AnswerForm
from inflight_gateway.asked_form import invalid
from inflight_gateway.chat_plan import ChatAsk, ChatPlan, plan_chat
from inflight_gateway.errors import ApiError
from inflight_gateway.field_names import naming_fields
from inflight_gateway.formats import Formats
from inflight_gateway.json_route import JsonRoute
from inflight_gateway.limits import take_samples
from inflight_gateway.logprobs import parts_of, response_logprobs
from inflight_gateway.reasoning_effort import effort_variables
from inflight_gateway.responses_api.conversation import images_of, messages_of
from inflight_gateway.responses_api.document import Document, InputTokens, ResponseDocument
from inflight_gateway.responses_api.function_name import FunctionName
from inflight_gateway.responses_api.output import COMPLETED, IN_PROGRESS, INCOMPLETE, Event, Output
from inflight_gateway.responses_api.request import ResponsesRequest
from inflight_gateway.responses_api.tools import function_names, tool_use
from inflight_gateway.sampling import queueing, sampled, tenant_of
from inflight_gateway.schemas import ALL_TOKENS
from inflight_gateway.service import Service, TheService
from inflight_gateway.shown_chat import shown_chat
from inflight_gateway.streaming import Answers, begin
from inflight_gateway.tracing import note_request

router = APIRouter(route_class=JsonRoute)

# Fields of the server, with those that they come from.
_FIELDS = {"messages": "input", "prompt": "input", "images": "input", "max_tokens": "max_output_tokens"}


@router.post(
    "/v1/responses",
    response_model=None,
    responses={200: {"model": ResponseDocument, "description": "The answer", "content": sse.DOCUMENTATION}},
)
async def create_response(body: ResponsesRequest, service: TheService, request: Request) -> Response:
    """Answer a conversation."""
    name = service.name_of(body.model)
    adapter = await service.adapter(name)
    note_request("chat", name, stream=bool(body.stream))
    take_samples(request.scope, 1)
    formats, ask = await _ask(body, service, request)
    asked = _sampling(body, request, adapter)
    document, names = Document(body, name), function_names(body)
    with naming_fields(_FIELDS):
        plan = await plan_chat(service.client, formats, ask)
    with naming_fields({**_FIELDS, **plan.names}):
        if body.stream or body.wants_logprobs:  # Only a stream tells which tokens are those of a message.
            events = _events(body, service, plan, asked, document, names)
            if body.stream:
                return await begin(_encoded(events), service.metrics, _error_event)
            *_, last = [event async for event in events]
            return JSONResponse(last["response"])
        answer = await service.client.generate(**plan.arguments(asked))
    service.answered(answer.usage, [answer.finish_reason])
    reader, output = plan.reader(), Output(names)
    status = _status(answer.finish_reason)
    for _ in itertools.chain(output.add([*reader.feed(answer.text), *reader.end()]), output.close(status)):
        pass  # The events are for streams.
    return JSONResponse(document.of(status, output.items, answer.usage))


@router.post("/v1/responses/input_tokens")
async def count_input_tokens(body: ResponsesRequest, service: TheService, request: Request) -> InputTokens:
    """Count the tokens of a conversation as the model would get it."""
    await service.adapter(service.name_of(body.model))
    formats, ask = await _ask(body, service, request)
    if ask.images:
        raise invalid("input", "input has images, whose tokens are not known before the model reads them")
    chat = shown_chat(ask.messages, ask.tools.tools if ask.tools is not None else (), ask.template_kwargs, formats)
    with naming_fields(_FIELDS):
        found = await service.client.tokenize(**chat.arguments(), tenant=ask.tenant)
    return {"object": "response.input_tokens", "input_tokens": len(found.token_ids)}


async def _ask(body: ResponsesRequest, service: Service, request: Request) -> tuple[Formats, ChatAsk]:
    formats = await service.model.formats()
    effort = None if body.reasoning is None else body.reasoning.effort
    variables = (body.chat_template_kwargs or {}) | effort_variables(effort, "reasoning.effort", formats)
    return formats, ChatAsk(
        messages_of(body),
        _form(body),
        tool_use(body),
        variables,
        images=images_of(body),
        tenant=tenant_of(request.scope, body.user),
    )


async def _encoded(events: AsyncGenerator[Event, None]) -> AsyncGenerator[bytes, None]:
    numbers = itertools.count()
    async with aclosing(events):
        async for event in events:
            yield sse.named_event(event["type"], {**event, "sequence_number": next(numbers)})


async def _events(
    body: ResponsesRequest,
    service: Service,
    plan: ChatPlan,
    asked: Sampling,
    document: Document,
    names: Mapping[str, FunctionName],
) -> AsyncGenerator[Event, None]:
    answers = Answers([service.client.stream(**plan.arguments(asked))])
    reader, output = plan.reader(), Output(names)
    begun, status = False, COMPLETED
    async with aclosing(answers.chunks()) as chunks:
        async for _, chunk in chunks:
            if not begun:  # Not before the server has accepted the request.
                begun = True
                for kind in ("response.created", "response.in_progress"):
                    yield {"type": kind, "response": document.of(IN_PROGRESS, [])}
            tokens = response_logprobs(chunk.logprobs, body.top_logprobs or 0)
            for text, own in parts_of(chunk.text, tokens):
                for event in output.add(reader.feed(text), own):
                    yield event
            if chunk.finish_reason is not None:
                status = _status(chunk.finish_reason)
    for event in itertools.chain(output.add(reader.end()), output.close(status)):
        yield event
    service.answered(answers.usage, answers.finish_reasons)
    yield {"type": f"response.{status}", "response": document.of(status, output.items, answers.usage)}


def _error_event(error: ApiError) -> bytes:
    detail = {"code": error.code, "message": error.detail, "param": error.param}
    # OpenAI's client raises an exception for an event that has the key error, and for no other.
    return sse.named_event("error", {"type": "error", **detail, **error.document()})


def _status(finish_reason: str) -> str:
    return INCOMPLETE if finish_reason == "length" else COMPLETED


def _sampling(body: ResponsesRequest, request: Request, adapter: str | None) -> Sampling:
    asked = sampled(body)
    asked["max_tokens"] = body.max_output_tokens or ALL_TOKENS
    if body.wants_logprobs:
        asked["logprobs"] = body.top_logprobs or 0
    return cast(Sampling, {**asked, **queueing(body, request.scope, adapter)})


def _form(body: ResponsesRequest) -> AnswerForm | None:
    """Return the form of the answer; None for free text. Raises ApiError if its schema is missing."""
    form = body.text.format if body.text is not None else None
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return AnswerForm("text.format", "json_object", True)
    for name, value in (("name", form.name), ("schema", form.schema_)):
        if value is None:
            raise invalid(f"text.format.{name}", f"text.format.{name} is missing; the type json_schema needs it")
    return AnswerForm("text.format", "json", form.schema_)
