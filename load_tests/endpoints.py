"""Clients for the servers under load: Inflight over gRPC and HTTP, and all servers with OpenAI's protocol."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

import aiohttp

from inflight_client import AsyncClient, InflightError, RetryPolicy, Sampling, Timeouts
from load_tests.failures import failing
from load_tests.openai_stream import TokenCounts, completion_body, refusal

ANSWER_SECONDS = 300.0
"""A request without a complete answer after this time has failed."""


class Endpoint(Protocol):
    """A server as the load generator sees it."""

    @property
    def name(self) -> str:
        """Its name in reports."""

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
    """The arguments of `Endpoint.ask` as fields of our client's `Sampling`."""
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
    """The model of an Inflight server. No request is sent again after a failure."""

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
    extra: Mapping[str, object] = field(default_factory=dict)
    """Fields of the body that this server needs in addition to ours or instead of them."""

    async def ask(
        self, prompt: Sequence[int], max_tokens: int, *, tenant: str, priority: int, target_ttft: float | None
    ) -> AsyncIterator[int]:
        """See `Endpoint`. The protocol has no `target_ttft`."""
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
    """A server, given its URL, such as http://127.0.0.1:9000. `extra` are additional fields of the body."""
    # A server closes connections that are idle for a while. A request sent on one at that moment fails.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(ANSWER_SECONDS)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield OpenAIEndpoint(f"OpenAI {url}", url.rstrip("/"), model, session, extra or {})
