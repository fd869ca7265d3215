"""The client for asyncio."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeVar, Unpack

import httpx

from inflight_client.asking import AsyncAsking, ask_async
from inflight_client.async_stream import AsyncTextStream
from inflight_client.errors import InflightError, TransportError
from inflight_client.fleet.addresses import split_url
from inflight_client.fleet.async_connection import AsyncFleetConnection
from inflight_client.fleet.factory import Servers, servers_of
from inflight_client.metrics import MetricsSnapshot, merge_metrics, read_response
from inflight_client.options import (
    TLS,
    Options,
    Timeouts,
    check_concurrency,
    metrics_url_of,
    within,
)
from inflight_client.prefill.async_connection import AsyncPrefillConnection
from inflight_client.prefill.prefill import Prefill
from inflight_client.progress import progress_bar
from inflight_client.prompt import Prompt, check_several
from inflight_client.questions import Question
from inflight_client.request import (
    AnyPrompt,
    Message,
    Queueing,
    Request,
    Sampling,
    make_embedding_request,
    make_request,
)
from inflight_client.response import Completion, Embedding
from inflight_client.retry import RetryPolicy
from inflight_client.server_info import ModelInfo, ServerInfo
from inflight_client.transport.connection import AsyncConnection
from inflight_client.transport.grpc_async import AsyncGrpcConnection
from inflight_client.transport.http_async import AsyncHttpConnection

_T = TypeVar("_T")
_P = TypeVar("_P")

_TRANSPORTS: dict[str, Callable[[Options], AsyncConnection]] = {
    "grpc": AsyncGrpcConnection,
    "http": AsyncHttpConnection,
}


class AsyncClient(AsyncAsking):
    """Client of one model on one server, for the tasks of one event loop. It has the same methods as `Client`.

    In another event loop, such as that of a second `asyncio.run`, they raise RuntimeError.

    >>> async def ask(prompt):
    ...     async with AsyncClient("127.0.0.1:8001") as client:
    ...         return await client.generate(prompt, max_tokens=2, temperature=0)
    >>> asyncio.run(ask("The capital of France is")).text
    ' Paris.'
    """

    def __init__(
        self,
        url: str = "127.0.0.1:8001",
        *,
        model: str = "llm",
        timeouts: Timeouts | None = None,
        retry: RetryPolicy | None = None,
        headers: Mapping[str, str] | None = None,
        tls: TLS | None = None,
        metrics_url: str | None = None,
        balance: str = "prefix",
        prefill: Prefill | None = None,
    ) -> None:
        """Takes the same arguments as `Client`. Raises RuntimeError if no event loop is running."""
        self._model = model
        self._timeouts = timeouts or Timeouts()
        self._retry = retry or RetryPolicy()
        servers = servers_of(url, tls, headers, self._timeouts, balance, _TRANSPORTS)
        self._loop = _running_loop()
        defaults = (metrics_url_of(server.address) for server in servers.named)
        self._metrics_urls = list(defaults) if metrics_url is None else split_url(metrics_url)
        self._fleet = _connect(servers, model)
        self._connected: AsyncConnection = self._fleet
        if prefill is not None:
            prompts = servers_of(prefill.url, tls, headers, self._timeouts, balance, _TRANSPORTS)
            self._connected = AsyncPrefillConnection(prefill, _connect(prompts, model), self._fleet)

    async def generate(
        self,
        prompt: Prompt | None = None,
        *,
        messages: Sequence[Message] | None = None,
        timeout: float | None = None,
        **sampling: Unpack[Sampling],
    ) -> Completion:
        """Send a prompt (text or token ids) or the messages of a chat, and return the finished answer.

        Works like `Client.generate`. If the calling task is cancelled, the request is cancelled too.
        """
        async with self._start(prompt, messages, timeout, sampling, stream=False) as stream:
            return await stream.completion()

    def stream(
        self,
        prompt: Prompt | None = None,
        *,
        messages: Sequence[Message] | None = None,
        timeout: float | None = None,
        **sampling: Unpack[Sampling],
    ) -> AsyncTextStream:
        """Like `generate`, but return the answer while the server generates it. Errors are raised while iterating.

        Use it as a context manager, so that leaving the block early cancels the request:

        >>> async def write(prompt):
        ...     async with AsyncClient("127.0.0.1:8001") as client:
        ...         async with client.stream(prompt, max_tokens=4, temperature=0) as stream:
        ...             async for chunk in stream:
        ...                 print(chunk.text, end="")
        >>> asyncio.run(write("A, B, C,"))
         D, E,
        """
        return self._start(prompt, messages, timeout, sampling, stream=True)

    async def chat(
        self, messages: Sequence[Message], *, timeout: float | None = None, **sampling: Unpack[Sampling]
    ) -> Completion:
        """Call `generate` with the messages of a chat. The model's chat template turns them into a prompt."""
        return await self.generate(messages=messages, timeout=timeout, **sampling)

    async def generate_many(
        self,
        prompts: Sequence[Prompt],
        *,
        concurrency: int = 32,
        progress: bool = False,
        timeout: float | None = None,
        **sampling: Unpack[Sampling],
    ) -> list[Completion]:
        """Return the answers to many prompts in the order of the prompts, like `Client.generate_many`.

        At most `concurrency` requests run at once.

        >>> async def ask(prompts):
        ...     async with AsyncClient("127.0.0.1:8001") as client:
        ...         return await client.generate_many(prompts, concurrency=8, max_tokens=2, temperature=0)
        >>> [answer.text for answer in asyncio.run(ask(["Monday, Tuesday,", "A, B, C,"]))]
        [' Wednesday,', ' D,']
        """
        return await self._all(
            prompts,
            lambda prompt: self._start(prompt, None, timeout, sampling, stream=False),
            AsyncTextStream.completion,
            concurrency,
            progress,
        )

    async def embed(
        self,
        prompt: Prompt,
        *,
        pooling: str = "last",
        normalize: bool = True,
        dimensions: int | None = None,
        timeout: float | None = None,
        **queueing: Unpack[Queueing],
    ) -> Embedding:
        """Return the embedding of a prompt, like `Client.embed`."""
        params = {"pooling": pooling, "normalize": normalize, "dimensions": dimensions}
        async with self._embedding(prompt, params, timeout, queueing) as stream:
            return await stream.embedding()

    async def embed_many(
        self,
        prompts: Sequence[Prompt],
        *,
        pooling: str = "last",
        normalize: bool = True,
        dimensions: int | None = None,
        concurrency: int = 32,
        progress: bool = False,
        timeout: float | None = None,
        **queueing: Unpack[Queueing],
    ) -> list[Embedding]:
        """Return the embeddings of many prompts in their order, like `Client.embed_many`."""
        params = {"pooling": pooling, "normalize": normalize, "dimensions": dimensions}
        return await self._all(
            prompts,
            lambda prompt: self._embedding(prompt, params, timeout, queueing),
            AsyncTextStream.embedding,
            concurrency,
            progress,
        )

    async def classify(
        self,
        prompt: AnyPrompt,
        *,
        use_activation: bool = True,
        timeout: float | None = None,
        **queueing: Unpack[Queueing],
    ) -> Embedding:
        """Return how likely each class of a model that classifies is for a prompt, like `Client.classify`."""
        params = {"task": "classify", "use_activation": use_activation}
        async with self._embedding(prompt, params, timeout, queueing) as stream:
            return await stream.embedding()

    async def classify_many(
        self,
        prompts: Sequence[AnyPrompt],
        *,
        use_activation: bool = True,
        concurrency: int = 32,
        progress: bool = False,
        timeout: float | None = None,
        **queueing: Unpack[Queueing],
    ) -> list[Embedding]:
        """Return how likely the classes are for many prompts, in their order, like `Client.classify_many`."""
        params = {"task": "classify", "use_activation": use_activation}
        return await self._all(
            prompts,
            lambda prompt: self._embedding(prompt, params, timeout, queueing),
            AsyncTextStream.embedding,
            concurrency,
            progress,
        )

    async def _all(
        self,
        prompts: Sequence[_P],
        start: Callable[[_P], AsyncTextStream],
        result_of: Callable[[AsyncTextStream], Awaitable[_T]],
        concurrency: int,
        progress: bool,
    ) -> list[_T]:
        check_concurrency(concurrency)
        check_several(prompts)
        answers: dict[int, _T] = {}
        waiting = iter(enumerate(prompts))

        with progress_bar(len(prompts), progress) as advance:

            async def worker() -> None:
                for index, prompt in waiting:
                    async with start(prompt) as stream:
                        answers[index] = await result_of(stream)
                    advance()

            workers = [asyncio.create_task(worker()) for _ in range(min(concurrency, len(prompts)))]
            try:
                await asyncio.gather(*workers)
            finally:
                for task in workers:
                    task.cancel()
                await asyncio.gather(*workers, return_exceptions=True)
        return [answers[index] for index in range(len(prompts))]

    async def is_ready(self) -> bool:
        """Whether the model takes requests now. Also False if no server answers in time."""
        try:
            return await self._connection.is_ready(self._model, self._timeouts.connect)
        except InflightError:
            return False

    async def server_info(self) -> ServerInfo:
        """The server's name, version and extensions."""
        return await self._connection.server_info(self._timeouts.connect)

    async def model_info(self) -> ModelInfo:
        """The model's inputs, outputs and parameters."""
        return await self._connection.model_info(self._model, self._timeouts.connect)

    async def metrics(self) -> MetricsSnapshot:
        """The server's current metrics. Raises TransportError if they cannot be read."""
        self._check_loop()
        found = {}
        for url in self._metrics_urls:
            try:
                found[url] = read_response(url, await self._metrics_http.get(url))
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                found[url] = TransportError(f"no metrics at {url}: {error}")
        return merge_metrics(found)

    @property
    def prefills(self) -> Mapping[str, int] | None:
        """Prompts for the servers of `prefill`, by what came of it: `offered`, `not_offered`, `failed`, or `skipped`
        while they do not answer. None without such servers."""
        return self._connected.servers.outcomes if isinstance(self._connected, AsyncPrefillConnection) else None

    async def close(self) -> None:
        """Close the connection and cancel the requests that are still running.

        They end with RequestCancelled, and so do later requests.
        """
        await self._connection.close()
        if "_metrics_http" in self.__dict__:
            await self._metrics_http.aclose()

    @property
    def _connection(self) -> AsyncConnection:
        self._check_loop()
        return self._connected

    def _check_loop(self) -> None:
        if _running_loop() is not self._loop:
            raise RuntimeError(
                "this AsyncClient was made in another event loop, which has its connections; make one in each loop"
            )

    @functools.cached_property
    def _metrics_http(self) -> httpx.AsyncClient:
        # Making one takes 20 ms.
        return httpx.AsyncClient(timeout=self._timeouts.connect, trust_env=False)

    async def _ask(self, question: Question[_T], seconds: float) -> _T:
        return await ask_async(self._connection, question, seconds)

    async def _ask_all(self, question: Question[_T], seconds: float) -> list[_T]:
        if not isinstance(self._fleet, AsyncFleetConnection):
            return [await self._ask(question, seconds)]
        self._check_loop()
        return await self._fleet.ask_all(question, seconds)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _start(
        self,
        prompt: Prompt | None,
        messages: Sequence[Message] | None,
        timeout: float | None,
        sampling: Sampling,
        *,
        stream: bool,
    ) -> AsyncTextStream:
        return self._send(make_request(self._model, prompt, messages, sampling, stream=stream), timeout)

    def _embedding(
        self,
        prompt: AnyPrompt,
        pooling_params: Mapping[str, object],
        timeout: float | None,
        queueing: Queueing,
    ) -> AsyncTextStream:
        return self._send(make_embedding_request(self._model, prompt, pooling_params, queueing), timeout)

    def _send(self, request: Request, timeout: float | None) -> AsyncTextStream:
        return AsyncTextStream(self._connection, request, within(self._timeouts, timeout), self._retry)


def _connect(servers: Servers[AsyncConnection], model: str) -> AsyncConnection:
    if servers.are_one:
        return servers.connect(servers.named[0])
    return AsyncFleetConnection(servers.named, servers.connect, servers.balance, model)


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError("AsyncClient needs a running event loop; make and use it in a coroutine") from None
