"""Servers under load: ours over gRPC and HTTP, and all that speak OpenAI's protocol."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

import aiohttp

from inflight_client import AsyncClient, InflightError, RetryPolicy, Sampling, Timeouts
from load_tests.failures import failing
from load_tests.openai_stream import TokenCounts, completion_body, refusal

ANSWER_SECONDS = 300.0
"""After which a request has failed."""


class Endpoint(Protocol):
    """A server, as a load generator sees it."""

    @property
    def name(self) -> str:
        """What reports call it."""

    def ask(
        self, prompt: Sequence[int], max_tokens: int, *, tenant: str, priority: int, target_ttft: float | None
    ) -> AsyncIterator[int]:
        """Send a prompt of token ids and yield the number of new tokens in each piece of the answer as it comes.

        An end-of-sequence token does not end the answer, so that it has `max_tokens` tokens. An empty `tenant` and a
        `priority` of 0 are not sent. `target_ttft` is in seconds.

        Raises:
            RequestFailed: for whatever reason.
        """


def sampling_of(max_tokens: int, tenant: str, priority: int, target_ttft: float | None) -> Sampling:
    """What `Endpoint.ask` promises, as our client takes it."""
    sampling = Sampling(max_tokens=max_tokens, ignore_eos=True, temperature=0.0, return_token_ids=True)
    if tenant:
        sampling["tenant"] = tenant
    if priority:
        sampling["priority"] = priority
    if target_ttft is not None:
        sampling["target_ttft_ms"] = max(1, round(1000 * target_ttft))
    return sampling


@dataclass(frozen=True)
class TritonEndpoint:
    """The model of an Inflight server; nothing is sent twice."""

    name: str
    client: AsyncClient

    async def ask(
        self, prompt: Sequence[int], max_tokens: int, *, tenant: str, priority: int, target_ttft: float | None
    ) -> AsyncIterator[int]:
        """See `Endpoint`."""
        sampling = sampling_of(max_tokens, tenant, priority, target_ttft)
        with failing(InflightError):
            async with self.client.stream(prompt, **sampling) as chunks:
                async for chunk in chunks:
                    if chunk.token_ids:
                        yield len(chunk.token_ids)


@asynccontextmanager
async def grpc_endpoint(url: str, model: str = "llm") -> AsyncIterator[Endpoint]:
    """A server by its host and port for gRPC."""
    async with _client(f"grpc://{url}", model) as client:
        yield TritonEndpoint(f"gRPC {url}", client)


@asynccontextmanager
async def http_endpoint(url: str, model: str = "llm") -> AsyncIterator[Endpoint]:
    """A server by its host and port for HTTP."""
    async with _client(f"http://{url}", model) as client:
        yield TritonEndpoint(f"HTTP {url}", client)


def _client(url: str, model: str) -> AsyncClient:
    timeouts = Timeouts(first_token=ANSWER_SECONDS, total=ANSWER_SECONDS)
    return AsyncClient(url, model=model, timeouts=timeouts, retry=RetryPolicy(attempts=1))


@dataclass(frozen=True)
class OpenAIEndpoint:
    """A server that has /v1/completions, such as our gateway, vLLM and llama.cpp's server."""

    name: str
    url: str
    """Up to and without /v1."""
    model: str
    session: aiohttp.ClientSession
    extra: Mapping[str, object] = field(default_factory=dict)
    """Fields of the body that this server wants besides, or instead of ours."""

    async def ask(
        self, prompt: Sequence[int], max_tokens: int, *, tenant: str, priority: int, target_ttft: float | None
    ) -> AsyncIterator[int]:
        """See `Endpoint`; the protocol has no `target_ttft`."""
        body = {**completion_body(self.model, prompt, max_tokens, tenant, priority), **self.extra}
        with failing(aiohttp.ClientError, TimeoutError):
            async with self.session.post(f"{self.url}/v1/completions", json=body) as response:
                if response.status != 200:
                    raise refusal(response.status, await response.text())
                counts = TokenCounts()
                async for line in response.content:
                    if new := counts.read(line.decode()):
                        yield new
                counts.check_end()


@asynccontextmanager
async def openai_endpoint(
    url: str, model: str = "llm", extra: Mapping[str, object] | None = None
) -> AsyncIterator[Endpoint]:
    """A server by its URL, such as http://127.0.0.1:9000; `extra` are further fields of the body."""
    # Servers close connections that were idle for a while, and a request that meets that fails.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(ANSWER_SECONDS)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield OpenAIEndpoint(f"OpenAI {url}", url.rstrip("/"), model, session, extra or {})
