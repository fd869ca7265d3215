"""POST /v1/chat/completions."""

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from inflight_client import Choice, Chunk, Sampling
from inflight_gateway import sse
from inflight_gateway.asked_form import asked_form
from inflight_gateway.chat_answer import TOOL_CALLS, Deltas, message_of
from inflight_gateway.chat_plan import ChatAsk, ChatPlan, plan_chat
from inflight_gateway.chat_request import ChatRequest
from inflight_gateway.field_names import naming_fields
from inflight_gateway.json_pieces import json_response
from inflight_gateway.json_route import JsonRoute
from inflight_gateway.limits import take_samples
from inflight_gateway.logprobs import chat_logprobs, prompt_logprobs
from inflight_gateway.messages import images_of, sent_messages
from inflight_gateway.pieces import Piece, Thought
from inflight_gateway.prediction import draft_of
from inflight_gateway.reasoning_effort import effort_variables
from inflight_gateway.responses import ChatChoice, ChatCompletion, ChatLogprobs
from inflight_gateway.sampling import sampling
from inflight_gateway.schemas import ALL_TOKENS
from inflight_gateway.service import Service, TheService
from inflight_gateway.streaming import Answers, begin
from inflight_gateway.tool_use import tool_use
from inflight_gateway.tracing import note_request
from inflight_gateway.usage import usage_count

router = APIRouter(route_class=JsonRoute)

# Fields of the server, with the one that they come from.
_FIELDS = {"prompt": "messages", "images": "messages"}


@router.post(
    "/v1/chat/completions",
    response_model=None,
    responses={200: {"model": ChatCompletion, "description": "The answers", "content": sse.DOCUMENTATION}},
)
async def create_chat_completion(body: ChatRequest, service: TheService, request: Request) -> Response:
    """Answer a chat."""
    name = service.name_of(body.model)
    adapter = await service.adapter(name)
    note_request("chat", name, stream=bool(body.stream))
    take_samples(request.scope, body.num_sequences)
    asked = sampling(body, request.scope, adapter)
    asked["max_tokens"] = body.max_completion_tokens or body.max_tokens or ALL_TOKENS
    if body.logprobs:
        asked["logprobs"] = body.top_logprobs or 0
    asked |= await draft_of(body.prediction, service, asked.get("tenant"))
    formats = await service.model.formats()
    variables = (body.chat_template_kwargs or {}) | effort_variables(body.reasoning_effort, "reasoning_effort", formats)
    messages, images = sent_messages(body.messages), images_of(body.messages)
    ask = ChatAsk(
        messages,
        asked_form(body),
        tool_use(body),
        variables,
        body.chat_end,
        images,
        tenant=asked.get("tenant"),
    )
    with naming_fields(_FIELDS):
        plan = await plan_chat(service.client, formats, ask)
    head: dict[str, Any] = {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion.chunk" if body.stream else "chat.completion",
        "created": int(time.time()),
        "model": name,
    }
    limit = {} if body.max_completion_tokens is None else {"max_tokens": "max_completion_tokens"}
    with naming_fields({**_FIELDS, **limit, **plan.names}):
        if body.stream:
            return await begin(_events(body, service, plan, asked, head), service.metrics)
        answer = await service.client.generate(**plan.arguments(asked))
    service.answered(answer.usage, [choice.finish_reason for choice in answer.choices])
    choices = (_choice(index, choice, body, plan) for index, choice in enumerate(answer.choices))
    if body.return_token_ids and answer.prompt is not None:
        head["prompt_token_ids"] = answer.prompt.token_ids
    if body.prompt_logprobs is not None:
        head["prompt_logprobs"] = prompt_logprobs(answer.prompt_logprobs)
    usage = usage_count(answer.usage, answer.perf if body.prediction else None)
    return json_response({**head, "choices": choices, "usage": usage}, in_pieces=body.has_logprobs)


async def _events(
    body: ChatRequest, service: Service, plan: ChatPlan, asked: Sampling, head: dict[str, Any]
) -> AsyncGenerator[bytes, None]:
    answers = Answers([service.client.stream(**plan.arguments(asked))])
    if body.wants_usage:
        head = {**head, "usage": None}
    streamed: dict[int, _StreamedChoice] = {}
    async with aclosing(answers.chunks()) as chunks:
        async for _, chunk in chunks:
            if body.wants_running_usage:
                head["usage"] = usage_count(answers.usage)
            if chunk.index not in streamed:
                begun = {**head, "choices": [_delta(chunk.index, {"role": "assistant", "content": ""})]}
                if body.return_token_ids and not streamed:
                    begun["prompt_token_ids"] = answers.prompt_ids(0)
                streamed[chunk.index] = _StreamedChoice(body, plan)
                yield sse.event(begun)
            for choice in streamed[chunk.index].choices(chunk):
                yield sse.event({**head, "choices": [choice]})
    service.answered(answers.usage, answers.finish_reasons)
    if body.wants_usage:
        usage = usage_count(answers.usage, answers.perf if body.prediction else None)
        yield sse.event({**head, "choices": [], "usage": usage})
    yield sse.DONE


class _StreamedChoice:
    """One answer of a stream."""

    def __init__(self, body: ChatRequest, plan: ChatPlan) -> None:
        self._body = body
        self._reader = plan.reader()
        self._deltas = Deltas()

    def choices(self, chunk: Chunk) -> list[dict[str, object]]:
        """Return the entries of `choices` for a chunk, one for each piece of it."""
        pieces = self._reader.feed(chunk.text)
        if chunk.finish_reason is not None:
            pieces += self._reader.end()
        deltas = list(self._deltas.of(_shown(pieces, self._body)))
        logprobs = _logprobs(chunk, self._body) if chunk.logprobs else None
        token_ids = list(chunk.token_ids) if self._body.return_token_ids else None
        if not deltas and (logprobs or token_ids or chunk.finish_reason):
            deltas = [{}]
        choices = [_delta(chunk.index, delta) for delta in deltas]
        if choices:
            if token_ids is not None:
                for choice in choices:
                    choice["token_ids"] = []
                choices[0]["token_ids"] = token_ids
            choices[0]["logprobs"] = logprobs
            choices[-1]["finish_reason"] = self._deltas.finish_reason(chunk.finish_reason)
            choices[-1]["stop_reason"] = chunk.stop_reason
        return choices


def _shown(pieces: list[Piece], body: ChatRequest) -> list[Piece]:
    """Return the pieces of an answer that the client wants to see."""
    if body.include_reasoning is not False:
        return pieces
    return [piece for piece in pieces if not isinstance(piece, Thought)]


def _delta(index: int, content: dict[str, Any]) -> dict[str, object]:
    return {"index": index, "delta": content, "logprobs": None, "finish_reason": None, "stop_reason": None}


def _choice(index: int, answer: Choice, body: ChatRequest, plan: ChatPlan) -> ChatChoice:
    reader = plan.reader()
    message = message_of(_shown([*reader.feed(answer.text), *reader.end()], body))
    has_calls = answer.finish_reason == "stop" and "tool_calls" in message
    choice: ChatChoice = {
        "index": index,
        "message": message,
        "logprobs": _logprobs(answer, body),
        "finish_reason": TOOL_CALLS if has_calls else answer.finish_reason,
        "stop_reason": answer.stop_reason,
    }
    if body.return_token_ids:
        choice["token_ids"] = list(answer.token_ids)
    return choice


def _logprobs(answer: Choice | Chunk, body: ChatRequest) -> ChatLogprobs | None:
    if not body.logprobs:
        return None
    return chat_logprobs(answer.logprobs, body.num_likeliest, by_ids=bool(body.return_tokens_as_token_ids))
