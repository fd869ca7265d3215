"""The ways into the service. All of them take the same questions and yield the same pieces of text."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import httpx
import openai

from inflight_client import AsyncClient, InflightError, Prefill, RetryPolicy, Timeouts
from inflight_client.response import parse_logprobs
from scripts.launch.server_process import ADDRESS

GREEDY = {"max_tokens": 16, "temperature": 0, "ignore_eos": True}


class NotAnswered(Exception):
    """A request ended with an error. `name` is that of its kind."""

    def __init__(self, name: str, message: str = "") -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


@dataclass(frozen=True, eq=False)
class Question:
    """A prompt or the messages of a chat, and how its tokens are chosen. Each object is a question of its own."""

    prompt: str = ""
    messages: Sequence[Mapping[str, str]] = ()
    """Used if there is no prompt."""
    sampling: Mapping[str, Any] = field(default_factory=lambda: GREEDY)
    """By the names that the server, its client and the gateway share."""
    images: Sequence[bytes] = ()
    """Files. Triton's streaming doors alone take them."""

    def but(self, **sampling: object) -> "Question":
        """The same question with other or more sampling parameters."""
        return replace(self, sampling={**self.sampling, **sampling})


class Piece(NamedTuple):
    """New text of one sample."""

    text: str
    sample: int = 0
    logprobs: tuple[float, ...] = ()
    """Those of the chosen tokens, if the question asks for them."""
    finish_reason: str | None = None


class Door(Protocol):
    """A way into the service."""

    @property
    def name(self) -> str:
        """Its name in reports."""

    def ask(self, question: Question) -> AsyncGenerator[Piece, None]:
        """Yield the pieces of an answer. Raises NotAnswered unless the answer is complete."""


@dataclass(frozen=True)
class TritonDoor:
    """Triton's gRPC or HTTP endpoint, through our client."""

    name: str
    client: AsyncClient
    streaming: bool = True

    async def ask(self, question: Question) -> AsyncGenerator[Piece, None]:
        """See `Door`."""
        prompt: Any = {"prompt": question.prompt} if question.prompt else {"messages": question.messages}
        try:
            if not self.streaming:
                answer = await self.client.generate(**prompt, **question.sampling)
                for sample, choice in enumerate(answer.choices):
                    yield Piece(choice.text, sample, _chosen(choice.logprobs), choice.finish_reason)
                return
            if question.images:
                prompt["images"] = question.images
            async with self.client.stream(**prompt, **question.sampling) as chunks:
                async for chunk in chunks:
                    yield Piece(chunk.text, chunk.index, _chosen(chunk.logprobs), chunk.finish_reason)
        except InflightError as error:
            raise NotAnswered(type(error).__name__, str(error)) from error


def _chosen(logprobs: Sequence[Any]) -> tuple[float, ...]:
    return tuple(entry.chosen.logprob for entry in logprobs)


@dataclass(frozen=True)
class WholeDoor:
    """Triton's generate endpoint of `completion` or `llm`, which answers in one piece, over HTTP."""

    name: str
    client: httpx.AsyncClient
    model: str = "completion"

    async def ask(self, question: Question) -> AsyncGenerator[Piece, None]:
        """See `Door`."""
        prompt = {"text_input": question.prompt} if question.prompt else {"messages": json.dumps(question.messages)}
        options = {"exclude_input_in_output": True, "return_finish_reason": True, "return_token_ids": True}
        options |= {"return_logprobs": "logprobs" in question.sampling}
        body = {**prompt, **options, "sampling_parameters": json.dumps(dict(question.sampling))}
        try:
            response = await self.client.post(f"/v2/models/{self.model}/generate", json=body)
        except httpx.HTTPError as error:
            raise NotAnswered(type(error).__name__, str(error)) from error
        if response.status_code != 200:
            raise NotAnswered(f"HTTP {response.status_code}", response.text)
        answer = response.json()
        # Triton writes an output with one element as a single value.
        texts, reasons = answer["text_output"], answer["finish_reason"]
        if isinstance(texts, str):
            logprobs = parse_logprobs(answer["logprobs"], answer["token_ids"]) if "logprobs" in answer else ()
            yield Piece(texts, 0, _chosen(logprobs), reasons)
            return
        for sample, (text, reason) in enumerate(zip(texts, reasons, strict=True)):
            yield Piece(text, sample, (), reason)


@dataclass(frozen=True)
class GatewayDoor:
    """The gateway's OpenAI-compatible endpoint."""

    name: str
    client: openai.AsyncOpenAI
    streaming: bool = True

    async def ask(self, question: Question) -> AsyncGenerator[Piece, None]:
        """See `Door`."""
        ends, samples = 0, question.sampling.get("n", 1)
        try:
            if not self.streaming:
                for choice in (await self._create(question, stream=False)).choices:
                    text = choice.text if question.prompt else choice.message.content
                    yield Piece(text, choice.index, _of_tokens(choice), choice.finish_reason)
                return
            async with await self._create(question, stream=True) as chunks:
                async for chunk in chunks:
                    choice = chunk.choices[0]
                    text = choice.text if question.prompt else choice.delta.content or ""
                    ends += choice.finish_reason is not None
                    yield Piece(text, choice.index, _of_tokens(choice), choice.finish_reason)
        except (openai.OpenAIError, httpx.HTTPError) as error:
            raise NotAnswered(type(error).__name__, f"{error} {error.__cause__ or ''!r}") from error
        if ends < samples:
            raise NotAnswered("cut off without an error")

    async def _create(self, question: Question, *, stream: bool) -> Any:
        sampling = dict(question.sampling)
        if question.prompt:
            return await self.client.completions.create(
                model="llm", prompt=question.prompt, stream=stream, extra_body=sampling
            )
        messages: Any = question.messages
        return await self.client.chat.completions.create(
            model="llm", messages=messages, stream=stream, extra_body=sampling
        )


def _of_tokens(choice: Any) -> tuple[float, ...]:
    return tuple(choice.logprobs.token_logprobs) if choice.logprobs else ()


@asynccontextmanager
async def open_doors(
    grpc_port: int, http_port: int, gateway_port: int, seconds: float, prefill: Prefill | None = None
) -> AsyncIterator[tuple[Sequence[Door], Sequence[Door]]]:
    """The doors that stream, with `completion`, and the other ones. No client waits longer than `seconds`.

    `prefill`: servers that our clients ask first.
    """
    timeouts, once = Timeouts(first_token=seconds, total=seconds), RetryPolicy(attempts=1)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        grpc = await enter(AsyncClient(f"grpc://{ADDRESS}:{grpc_port}", timeouts=timeouts, retry=once, prefill=prefill))
        http = await enter(AsyncClient(f"http://{ADDRESS}:{http_port}", timeouts=timeouts, retry=once, prefill=prefill))
        gateway = await enter(
            openai.AsyncOpenAI(base_url=f"http://{ADDRESS}:{gateway_port}/v1", api_key="none", max_retries=0)
        )
        triton = f"http://{ADDRESS}:{http_port}"
        limits = httpx.Limits(max_connections=None)
        whole = await enter(httpx.AsyncClient(base_url=triton, timeout=seconds, limits=limits, trust_env=False))
        first = (
            TritonDoor("gRPC", grpc),
            TritonDoor("HTTP", http),
            GatewayDoor("gateway", gateway),
            WholeDoor("completion", whole),
        )
        second = (
            TritonDoor("gRPC, whole", grpc, streaming=False),
            GatewayDoor("gateway, whole", gateway, streaming=False),
            WholeDoor("HTTP, whole", whole, "llm"),
        )
        yield first, second
