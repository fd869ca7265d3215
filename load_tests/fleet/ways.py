"""The ways to the servers of a fleet. All send prompts as texts, because smg refuses token ids."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache

from tokenizers import Tokenizer

from inflight_client import AsyncClient, RetryPolicy, Timeouts
from load_tests.endpoints import ANSWER_SECONDS, Endpoint, Prompt, TritonEndpoint, openai_endpoint
from load_tests.prompts import PlannedRequest
from scripts.fleet.fleet import Fleet
from scripts.launch.default_model import default_model


@asynccontextmanager
async def client_way(fleet: Fleet, balance: str) -> AsyncIterator[Endpoint]:
    """Our client, which knows all servers. No request is sent twice to one server."""
    timeouts = Timeouts(first_token=ANSWER_SECONDS, total=ANSWER_SECONDS)
    async with AsyncClient(
        fleet.grpc_urls, balance=balance, timeouts=timeouts, retry=RetryPolicy(attempts=1)
    ) as client:
        yield _InText(TritonEndpoint(f"client, {balance}", client))


@asynccontextmanager
async def grpc_way(fleet: Fleet) -> AsyncIterator[Endpoint]:
    """KServe's gRPC through the load balancer."""
    timeouts = Timeouts(first_token=ANSWER_SECONDS, total=ANSWER_SECONDS)
    async with AsyncClient(fleet.grpc_url or "", timeouts=timeouts, retry=RetryPolicy(attempts=1)) as client:
        yield _InText(TritonEndpoint("gRPC", client))


@asynccontextmanager
async def openai_way(fleet: Fleet) -> AsyncIterator[Endpoint]:
    """OpenAI's API through the load balancer."""
    async with openai_endpoint(fleet.openai_url or "") as endpoint:
        yield _InText(endpoint)


@dataclass(frozen=True)
class _InText:
    """Sends prompts as texts, which have about as many tokens."""

    endpoint: Endpoint

    @property
    def name(self) -> str:
        """See `Endpoint`."""
        return self.endpoint.name

    def ask(self, request: PlannedRequest, prompt: Prompt) -> AsyncIterator[int]:
        """See `Endpoint`."""
        text = prompt if isinstance(prompt, str) else _tokenizer().decode(list(prompt))
        return self.endpoint.ask(request, text)


@cache
def _tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(default_model() / "tokenizer.json"))
