"""The ways to the servers of a fleet."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from inflight_client import AsyncClient, RetryPolicy, Timeouts
from load_tests.endpoints import ANSWER_SECONDS, Endpoint, TritonEndpoint, openai_endpoint
from scripts.fleet.fleet import Fleet


@asynccontextmanager
async def client_way(fleet: Fleet, balance: str) -> AsyncIterator[Endpoint]:
    """Our client, which knows all servers. No request is sent twice to one server."""
    timeouts = Timeouts(first_token=ANSWER_SECONDS, total=ANSWER_SECONDS)
    async with AsyncClient(
        fleet.grpc_urls, balance=balance, timeouts=timeouts, retry=RetryPolicy(attempts=1)
    ) as client:
        yield TritonEndpoint(f"client, {balance}", client)


@asynccontextmanager
async def grpc_way(fleet: Fleet) -> AsyncIterator[Endpoint]:
    """KServe's gRPC through the load balancer."""
    timeouts = Timeouts(first_token=ANSWER_SECONDS, total=ANSWER_SECONDS)
    async with AsyncClient(fleet.grpc_url or "", timeouts=timeouts, retry=RetryPolicy(attempts=1)) as client:
        yield TritonEndpoint("gRPC", client)


@asynccontextmanager
async def openai_way(fleet: Fleet) -> AsyncIterator[Endpoint]:
    """OpenAI's API through the load balancer."""
    async with openai_endpoint(fleet.openai_url or "") as endpoint:
        yield endpoint
