"""POST /v1/chat/completions."""

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from inflight_client import Choice, Chunk, Message, Sampling
from inflight_gateway import sse
from inflight_gateway.limits import take_samples
from inflight_gateway.logprobs import chat_logprobs
from inflight_gateway.responses import ChatChoice, ChatCompletion, ChatLogprobs
from inflight_gateway.schemas import ALL_TOKENS, ChatMessage, ChatRequest
from inflight_gateway.service import Service, TheService, sampling, usage_count
from inflight_gateway.streaming import Answers, begin

router = APIRouter()


@router.post(
    "/v1/chat/completions",
    response_model=None,
    responses={200: {"model": ChatCompletion, "description": "The answers", "content": sse.DOCUMENTATION}},
)
async def create_chat_completion(body: ChatRequest, service: TheService, request: Request) -> Response:
    """Answer a chat."""
    service.describe(body.model)
    take_samples(request.scope, body.n or 1)
    asked = sampling(body, request.scope)
    asked["max_tokens"] = body.max_completion_tokens or body.max_tokens or ALL_TOKENS
    if body.logprobs:
        asked["logprobs"] = body.top_logprobs or 0
    head = {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion.chunk" if body.stream else "chat.completion",
        "created": int(time.time()),
        "model": body.model,
    }
    if body.stream:
        asked["return_token_ids"] = body.wants_running_usage
        return await begin(_events(body, service, asked, head), service.metrics)
    answer = await service.client.chat(_messages(body), **asked)
    service.metrics.count_tokens(answer.usage)
    choices = [_choice(index, choice, body) for index, choice in enumerate(answer.choices)]
    return JSONResponse({**head, "choices": choices, "usage": usage_count(answer.usage)})


async def _events(
    body: ChatRequest, service: Service, asked: Sampling, head: dict[str, Any]
) -> AsyncGenerator[bytes, None]:
    answers = Answers([service.client.stream(messages=_messages(body), **asked)])
    if body.wants_usage:
        head = {**head, "usage": None}
    begun: set[int] = set()
    async with aclosing(answers.chunks()) as chunks:
        async for _, chunk in chunks:
            if body.wants_running_usage:
                head["usage"] = usage_count(answers.usage)
            if chunk.index not in begun:
                begun.add(chunk.index)
                yield sse.event({**head, "choices": [_delta(chunk.index, {"role": "assistant", "content": ""})]})
            if chunk.text or chunk.logprobs or chunk.finish_reason:
                content = {"content": chunk.text} if chunk.text else {}
                delta = _delta(chunk.index, content, _logprobs(chunk, body), chunk.finish_reason)
                yield sse.event({**head, "choices": [delta]})
    service.metrics.count_tokens(answers.usage)
    if body.wants_usage:
        yield sse.event({**head, "choices": [], "usage": usage_count(answers.usage)})
    yield sse.DONE


def _delta(
    index: int, content: dict[str, str], logprobs: ChatLogprobs | None = None, finish_reason: str | None = None
) -> dict[str, object]:
    return {"index": index, "delta": content, "logprobs": logprobs, "finish_reason": finish_reason}


def _choice(index: int, answer: Choice, body: ChatRequest) -> ChatChoice:
    return {
        "index": index,
        "message": {"role": "assistant", "content": answer.text, "refusal": None},
        "logprobs": _logprobs(answer, body),
        "finish_reason": answer.finish_reason,
    }


def _logprobs(answer: Choice | Chunk, body: ChatRequest) -> ChatLogprobs | None:
    return chat_logprobs(answer.logprobs, body.num_likeliest) if body.logprobs else None


def _messages(body: ChatRequest) -> list[Message]:
    return [{"role": _role(message), "content": message.text} for message in body.messages]


def _role(message: ChatMessage) -> str:
    # OpenAI's newer name for the same role. The chat templates of models know only "system".
    return "system" if message.role == "developer" else message.role
