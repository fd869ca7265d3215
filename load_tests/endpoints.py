"""Clients for the servers under load: Inflight over gRPC and HTTP, and all servers with OpenAI's protocol."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import aiohttp

from inflight_client import AsyncClient, InflightError, RetryPolicy, Sampling, Timeouts
from load_tests.failures import failing
from load_tests.openai_stream import TokenCounts, completion_body, refusal
from load_tests.prompts import PlannedRequest

ANSWER_SECONDS = 300.0
"""A request without a complete answer after this time has failed."""


Prompt = str | Sequence[int]
"""A text, or token ids."""


class Endpoint(Protocol):
    """A server as the load generator sees it."""

    @property
    def name(self) -> str:
        """Its name in reports."""

    def ask(self, request: PlannedRequest, prompt: Prompt) -> AsyncIterator[int]:
        """Send a request and its prompt. Yield the number of new tokens in each piece of the answer.

        An end-of-sequence token does not end the answer, so that it has `output_tokens` tokens. An empty `tenant` and a
        `priority` of 0 are not sent.

        Raises:
            RequestFailed: for whatever reason.
        """


def sampling_of(request: PlannedRequest) -> Sampling:
    """A request as fields of our client's `Sampling`."""
    sampling: Sampling = {
        **request.sampling,  # type: ignore[typeddict-item]
        "max_tokens": request.output_tokens,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    if request.tenant:
        sampling["tenant"] = request.tenant
    if request.priority:
        sampling["priority"] = request.priority
    if request.target_ttft is not None:
        sampling["target_ttft_ms"] = max(1, round(1000 * request.target_ttft))
    return sampling


@dataclass(frozen=True)
class TritonEndpoint:
    """The model of an Inflight server. No request is sent again after a failure."""

    name: str
    client: AsyncClient

    async def ask(self, request: PlannedRequest, prompt: Prompt) -> AsyncIterator[int]:
        """See `Endpoint`."""
        with failing(InflightError):
            async with self.client.stream(prompt, **sampling_of(request)) as chunks:
                async for chunk in chunks:
                    if chunk.token_ids:
                        yield len(chunk.token_ids)


@asynccontextmanager
async def grpc_endpoint(url: str, model: str = "llm") -> AsyncIterator[Endpoint]:
    """A server, given the host and port of its gRPC endpoint."""
    async with _client(f"grpc://{url}", model) as client:
        yield TritonEndpoint(f"gRPC {url}", client)


@asynccontextmanager
async def http_endpoint(url: str, model: str = "llm") -> AsyncIterator[Endpoint]:
    """A server, given the host and port of its HTTP endpoint."""
    async with _client(f"http://{url}", model) as client:
        yield TritonEndpoint(f"HTTP {url}", client)


def _client(url: str, model: str) -> AsyncClient:
    timeouts = Timeouts(first_token=ANSWER_SECONDS, total=ANSWER_SECONDS)
    return AsyncClient(url, model=model, timeouts=timeouts, retry=RetryPolicy(attempts=1))


@dataclass(frozen=True)
class OpenAIEndpoint:
    """A server with /v1/completions, such as our gateway, vLLM and llama.cpp's server."""

    name: str
    url: str
    """The URL before /v1."""
    model: str
    session: aiohttp.ClientSession

    async def ask(self, request: PlannedRequest, prompt: Prompt) -> AsyncIterator[int]:
        """See `Endpoint`. The protocol has no `target_ttft`."""
        body = completion_body(self.model, request, prompt)
        # The last three: a server may send anything, such as half an event or other fields.
        with failing(aiohttp.ClientError, TimeoutError, LookupError, TypeError, ValueError):
            async with self.session.post(f"{self.url}/v1/completions", json=body) as response:
                if response.status != 200:
                    raise refusal(response.status, await response.text())
                counts = TokenCounts()
                async for line in response.content:
                    if new := counts.read(line.decode()):
                        yield new
                counts.check_end()


@asynccontextmanager
async def openai_endpoint(url: str, model: str = "llm") -> AsyncIterator[Endpoint]:
    """A server, given its URL, such as http://127.0.0.1:9000."""
    # A server closes connections that are idle for a while. A request sent on one at that moment fails.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(ANSWER_SECONDS)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield OpenAIEndpoint(f"OpenAI {url}", url.rstrip("/"), model, session)
