"""POST /v1/completions."""

import time
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from inflight_client import Choice, Chunk, Prompt, Sampling
from inflight_client import Completion as Whole
from inflight_gateway import sse
from inflight_gateway.answer_form import server_names
from inflight_gateway.asked_form import asked_form
from inflight_gateway.field_names import naming_fields
from inflight_gateway.json_pieces import json_response
from inflight_gateway.json_route import JsonRoute
from inflight_gateway.limits import take_samples
from inflight_gateway.logprobs import completion_logprobs, echo_logprobs, length_of, prompt_logprobs
from inflight_gateway.responses import Completion, CompletionChoice
from inflight_gateway.sampling import sampling
from inflight_gateway.schemas import DEFAULT_COMPLETION_TOKENS, CompletionRequest
from inflight_gateway.service import Service, TheService
from inflight_gateway.streaming import Answers, begin
from inflight_gateway.tracing import note_request
from inflight_gateway.usage import total, usage_count

router = APIRouter(route_class=JsonRoute)


@router.post(
    "/v1/completions",
    response_model=None,
    responses={200: {"model": Completion, "description": "The answers", "content": sse.DOCUMENTATION}},
)
async def create_completion(body: CompletionRequest, service: TheService, request: Request) -> Response:
    """Continue one or several prompts."""
    name = service.name_of(body.model)
    adapter = await service.adapter(name)
    note_request("text_completion", name, stream=bool(body.stream))
    take_samples(request.scope, len(body.prompts) * body.num_sequences)
    asked = sampling(body, request.scope, adapter)
    prompts = await _prompts(body, service, asked.get("tenant"))
    asked["max_tokens"] = DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    form = asked_form(body)
    if form is not None:
        asked["structured_outputs"] = form.structured_outputs()
    if body.logprobs is not None:
        asked["logprobs"] = body.logprobs
    if body.truncate_prompt_tokens is not None:
        asked["truncate_prompt_tokens"] = body.truncate_prompt_tokens
        asked["truncation_side"] = body.truncation_side or "left"
    if body.echo:
        asked |= _for_echo(body)
    head = {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": name,
    }
    with naming_fields({} if form is None else server_names(form.asked_by)):
        if body.stream:
            return await begin(_events(body, prompts, service, asked, head), service.metrics)
        answers = await service.client.generate_many(prompts, concurrency=len(prompts), **asked)
    choices = [(prompt, answer, c) for prompt, answer in zip(prompts, answers, strict=True) for c in answer.choices]
    usage = total([answer.usage for answer in answers])
    service.answered(usage, [choice.finish_reason for _, _, choice in choices])
    whole = (_whole(index, prompt, answer, choice, body) for index, (prompt, answer, choice) in enumerate(choices))
    document = {**head, "choices": whole, "usage": usage_count(usage)}
    return json_response(document, in_pieces=body.has_logprobs)


async def _prompts(body: CompletionRequest, service: Service, tenant: str | None) -> list[Prompt]:
    """Return the prompts. Texts become tokens here if the tokenizer must add none of its own."""
    if body.add_special_tokens is not False:
        return body.prompts
    with naming_fields({"text_input": "prompt"}):
        return [
            (await service.client.tokenize(prompt, add_special_tokens=False, tenant=tenant)).token_ids
            if isinstance(prompt, str)
            else prompt
            for prompt in body.prompts
        ]


async def _events(
    body: CompletionRequest, prompts: Sequence[Prompt], service: Service, asked: Sampling, head: dict[str, Any]
) -> AsyncGenerator[bytes, None]:
    answers = Answers(service.client.stream(prompt, **asked) for prompt in prompts)
    if body.wants_usage:
        head = {**head, "usage": None}
    offsets: Counter[int] = Counter()
    async with aclosing(answers.chunks()) as chunks:
        async for prompt_index, chunk in chunks:
            if body.wants_running_usage:
                head["usage"] = usage_count(answers.usage)
            if chunk.text or chunk.logprobs or chunk.finish_reason or (body.return_token_ids and chunk.token_ids):
                index = prompt_index * (body.n or 1) + chunk.index
                choice = _choice(index, chunk, body, offsets[index])
                if body.return_token_ids:
                    choice["token_ids"] = list(chunk.token_ids)
                    if index not in offsets:
                        choice["prompt_token_ids"] = answers.prompt_ids(prompt_index)
                yield sse.event({**head, "choices": [choice]})
                offsets[index] += length_of(chunk.logprobs)
    service.answered(answers.usage, answers.finish_reasons)
    if body.wants_usage:
        yield sse.event({**head, "choices": [], "usage": usage_count(answers.usage)})
    yield sse.DONE


def _for_echo(body: CompletionRequest) -> Sampling:
    """Return what else the server is asked for: the prompt, and its scores if they are wanted or if all else ends."""
    asked = Sampling(return_prompt=True)
    if body.prompt_logprobs is None and (body.logprobs is not None or body.max_tokens == 0):
        asked["prompt_logprobs"] = body.logprobs or 0
    return asked


def _whole(index: int, prompt: Prompt, whole: Whole, answer: Choice, body: CompletionRequest) -> dict[str, Any]:
    """Return a whole answer with all that was asked for."""
    shown = _echo(index, prompt, whole, answer, body) if body.echo else _choice(index, answer, body, 0)
    choice: dict[str, Any] = {**shown}
    if body.return_token_ids and whole.prompt is not None:
        choice["token_ids"], choice["prompt_token_ids"] = list(answer.token_ids), list(whole.prompt.token_ids)
    if body.prompt_logprobs is not None:
        choice["prompt_logprobs"] = prompt_logprobs(whole.prompt_logprobs)
    return choice


def _echo(index: int, prompt: Prompt, whole: Whole, answer: Choice, body: CompletionRequest) -> CompletionChoice:
    """Return an answer that begins with its prompt."""
    read = whole.prompt
    assert read is not None  # `_for_echo` asks for it.
    text = prompt if isinstance(prompt, str) and body.truncate_prompt_tokens is None else read.text
    logprobs = None
    if body.logprobs is not None:
        by_ids = bool(body.return_tokens_as_token_ids)
        logprobs = echo_logprobs(text, read, whole.prompt_logprobs, answer.logprobs, by_ids=by_ids)
    return {
        "index": index,
        "text": text + answer.text,
        "logprobs": logprobs,
        "finish_reason": answer.finish_reason,
        "stop_reason": answer.stop_reason,
    }


def _choice(index: int, answer: Choice | Chunk, body: CompletionRequest, offset: int) -> CompletionChoice:
    """Return an answer, or the new piece of it that begins after `offset` characters."""
    by_ids = bool(body.return_tokens_as_token_ids)
    return {
        "index": index,
        "text": answer.text,
        "logprobs": None if body.logprobs is None else completion_logprobs(answer.logprobs, offset, by_ids=by_ids),
        "finish_reason": answer.finish_reason,
        "stop_reason": answer.stop_reason,
    }
