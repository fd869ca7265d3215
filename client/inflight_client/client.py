"""The client for threads."""

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from types import TracebackType
from typing import Self, TypeVar, Unpack

import httpx

from inflight_client.asking import Asking, ask
from inflight_client.errors import InflightError, TransportError
from inflight_client.fleet.addresses import split_url
from inflight_client.fleet.connection import FleetConnection
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
from inflight_client.prefill.connection import PrefillConnection
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
from inflight_client.stream import TextStream
from inflight_client.transport.connection import Connection
from inflight_client.transport.grpc_sync import GrpcConnection
from inflight_client.transport.http_sync import HttpConnection

_T = TypeVar("_T")
_P = TypeVar("_P")

_TRANSPORTS: dict[str, Callable[[Options], Connection]] = {"grpc": GrpcConnection, "http": HttpConnection}


class Client(Asking):
    """Client of one model on one server.

    Any number of threads can use one client at once. Their requests share its connection, and each request can be
    cancelled separately. The client sends nothing before the first call.

    A program that continues after Ctrl-C should use `AsyncClient`. A KeyboardInterrupt in the thread that reads from
    gRPC can leave a lock inside gRPC held, and later calls then wait for it.

    >>> with Client("127.0.0.1:8001") as client:
    ...     client.generate("The capital of France is", max_tokens=2, temperature=0).text
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
        """Create a client. This does not connect to the server yet.

        Args:
            url: host and port, with the prefix `grpc://`, `grpcs://`, `http://` or `https://`. Without a prefix: gRPC.
                Several servers are separated by commas. A DNS name with several addresses stands for several servers,
                unless it is encrypted.
            model: the model's name on the server.
            timeouts: how long to wait.
            retry: when to send a failed request again. Default: `RetryPolicy()`.
            headers: headers of every call, such as {"authorization": "Bearer ..."}.
            tls: certificates for an encrypted URL. Default: trust the system's certificates.
            metrics_url: the address that `metrics` reads, or several, separated by commas. Default: port 8002 of the
                same hosts.
            balance: which of several servers gets a request. `prefix`: one that has the beginning of the prompt in its
                prefix cache, unless it has too much to do; `least_loaded`; `round_robin`. A request that fails before
                its first token because a server is away, not ready or busy goes to the next one at once.
            prefill: servers that compute long prompts, which the servers of `url` continue. Default: none.

        Raises:
            ValueError: the URL, a header or `balance` is invalid, or `tls` is given and the URL is not encrypted.
            OSError: a certificate cannot be read.
        """
        self._model = model
        self._timeouts = timeouts or Timeouts()
        self._retry = retry or RetryPolicy()
        servers = servers_of(url, tls, headers, self._timeouts, balance, _TRANSPORTS)
        defaults = (metrics_url_of(server.address) for server in servers.named)
        self._metrics_urls = list(defaults) if metrics_url is None else split_url(metrics_url)
        self._fleet = _connect(servers, model)
        self._connection: Connection = self._fleet
        if prefill is not None:
            prompts = servers_of(prefill.url, tls, headers, self._timeouts, balance, _TRANSPORTS)
            self._connection = PrefillConnection(prefill, _connect(prompts, model), self._fleet)

    def generate(
        self,
        prompt: Prompt | None = None,
        *,
        messages: Sequence[Message] | None = None,
        timeout: float | None = None,
        **sampling: Unpack[Sampling],
    ) -> Completion:
        """Send a prompt (text or token ids) or the messages of a chat, and return the finished answer.

        `timeout` is in seconds and replaces `Timeouts.total`. Raises an `InflightError` if the request fails, and
        TypeError for an unknown sampling parameter.

        >>> answer = client.generate("A, B, C,", max_tokens=4, temperature=0)
        >>> answer.text, answer.finish_reason, answer.usage
        (' D, E,', 'length', Usage(prompt_tokens=6, completion_tokens=4, cached_tokens=0))

        With a `schema` (a JSON schema, a pydantic model or a dataclass), the answer is JSON that matches it:

        >>> schema = {"type": "object", "properties": {"city": {"enum": ["Ulm", "Rome"]}}, "required": ["city"]}
        >>> client.generate("Name a city in Italy.", schema=schema, max_tokens=32, temperature=0).parsed["city"]
        'Rome'
        """
        with self._start(prompt, messages, timeout, sampling, stream=False) as stream:
            return stream.completion()

    def stream(
        self,
        prompt: Prompt | None = None,
        *,
        messages: Sequence[Message] | None = None,
        timeout: float | None = None,
        **sampling: Unpack[Sampling],
    ) -> TextStream:
        """Like `generate`, but return the answer while the server generates it. Errors are raised while iterating.

        Use it as a context manager, so that leaving the block early cancels the request:

        >>> with client.stream("A, B, C,", max_tokens=4, temperature=0) as stream:
        ...     for chunk in stream:
        ...         print(chunk.text, end="")
         D, E,
        """
        return self._start(prompt, messages, timeout, sampling, stream=True)

    def chat(
        self, messages: Sequence[Message], *, timeout: float | None = None, **sampling: Unpack[Sampling]
    ) -> Completion:
        """Call `generate` with the messages of a chat. The model's chat template turns them into a prompt.

        >>> client.chat([{"role": "user", "content": "Say hello."}], max_tokens=64, temperature=0).finish_reason
        'stop'
        """
        return self.generate(messages=messages, timeout=timeout, **sampling)

    def generate_many(
        self,
        prompts: Sequence[Prompt],
        *,
        concurrency: int = 32,
        progress: bool = False,
        timeout: float | None = None,
        **sampling: Unpack[Sampling],
    ) -> list[Completion]:
        """Return the answers to many prompts in the order of the prompts. At most `concurrency` requests run at once.

        `progress` shows a progress bar on standard error. If a request fails after its last attempt, the other requests
        are cancelled and its error is raised.

        >>> answers = client.generate_many(["Monday, Tuesday,", "A, B, C,"], max_tokens=2, temperature=0)
        >>> [answer.text for answer in answers]
        [' Wednesday,', ' D,']
        """
        return self._all(
            prompts,
            lambda prompt: self._start(prompt, None, timeout, sampling, stream=False),
            TextStream.completion,
            concurrency,
            progress,
        )

    def embed(
        self,
        prompt: Prompt,
        *,
        pooling: str = "last",
        normalize: bool = True,
        dimensions: int | None = None,
        timeout: float | None = None,
        **queueing: Unpack[Queueing],
    ) -> Embedding:
        """Return the embedding of a prompt, which is text or token ids.

        Args:
            prompt: text or token ids.
            pooling: `last` takes the model's hidden state at the last token, `mean` the mean of those of all tokens.
            normalize: divide the embedding by its length.
            dimensions: keep so many of the first numbers. Default: all.
            timeout: in seconds; replaces `Timeouts.total`.
            queueing: priority, tenant and deadline.

        Raises an `InflightError` if the request fails, and TypeError for an unknown argument.

        >>> embedding = client.embed("The capital of France is Paris.", dimensions=8)
        >>> len(embedding.values), embedding.usage.prompt_tokens
        (8, 7)
        """
        params = {"pooling": pooling, "normalize": normalize, "dimensions": dimensions}
        with self._embedding(prompt, params, timeout, queueing) as stream:
            return stream.embedding()

    def embed_many(
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
        """Return the embeddings of many prompts in their order: `embed` for each, as `generate_many` does it."""
        params = {"pooling": pooling, "normalize": normalize, "dimensions": dimensions}
        return self._all(
            prompts,
            lambda prompt: self._embedding(prompt, params, timeout, queueing),
            TextStream.embedding,
            concurrency,
            progress,
        )

    def classify(
        self,
        prompt: AnyPrompt,
        *,
        use_activation: bool = True,
        timeout: float | None = None,
        **queueing: Unpack[Queueing],
    ) -> Embedding:
        """Return how likely each class is for a prompt, from a model that classifies. Rerankers have one class.

        Args:
            prompt: text or token ids, or messages, or for a reranker a `TextPair`.
            use_activation: False returns logits in place of probabilities, as reward models need them.
            timeout, queueing: as in `embed`.

        The numbers are the `values` of what this returns; `describe_model` has the names of the classes.
        """
        params = {"task": "classify", "use_activation": use_activation}
        with self._embedding(prompt, params, timeout, queueing) as stream:
            return stream.embedding()

    def classify_many(
        self,
        prompts: Sequence[AnyPrompt],
        *,
        use_activation: bool = True,
        concurrency: int = 32,
        progress: bool = False,
        timeout: float | None = None,
        **queueing: Unpack[Queueing],
    ) -> list[Embedding]:
        """Return how likely the classes are for many prompts, in their order: `classify` for each."""
        params = {"task": "classify", "use_activation": use_activation}
        return self._all(
            prompts,
            lambda prompt: self._embedding(prompt, params, timeout, queueing),
            TextStream.embedding,
            concurrency,
            progress,
        )

    def _all(
        self,
        prompts: Sequence[_P],
        start: Callable[[_P], TextStream],
        result_of: Callable[[TextStream], _T],
        concurrency: int,
        progress: bool,
    ) -> list[_T]:
        check_concurrency(concurrency)
        check_several(prompts)
        streams: set[TextStream] = set()
        stopping = threading.Event()

        def answer(prompt: _P) -> _T:
            with start(prompt) as stream:
                streams.add(stream)
                # Check after `add`: the thread that sets `stopping` only cancels the streams that it finds in the set.
                if stopping.is_set():
                    stream.cancel()
                try:
                    return result_of(stream)
                finally:
                    streams.discard(stream)

        with ThreadPoolExecutor(concurrency) as pool, progress_bar(len(prompts), progress) as advance:
            futures = [pool.submit(answer, prompt) for prompt in prompts]
            try:
                for future in as_completed(futures):
                    future.result()
                    advance()
            except BaseException:
                stopping.set()
                pool.shutdown(wait=False, cancel_futures=True)
                for stream in list(streams):
                    stream.cancel()
                raise
        return [future.result() for future in futures]

    def is_ready(self) -> bool:
        """Whether the model takes requests now. Also False if no server answers in time."""
        try:
            return self._connection.is_ready(self._model, self._timeouts.connect)
        except InflightError:
            return False

    def server_info(self) -> ServerInfo:
        """The server's name, version and extensions."""
        return self._connection.server_info(self._timeouts.connect)

    def model_info(self) -> ModelInfo:
        """The model's inputs, outputs and parameters."""
        return self._connection.model_info(self._model, self._timeouts.connect)

    def metrics(self) -> MetricsSnapshot:
        """The server's current metrics. Raises TransportError if they cannot be read.

        >>> client.metrics().value("inflight:num_requests_running", model="llm") >= 0
        True
        """
        found = {}
        for url in self._metrics_urls:
            try:
                found[url] = read_response(url, self._metrics_http.get(url))
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                found[url] = TransportError(f"no metrics at {url}: {error}")
        return merge_metrics(found)

    @property
    def prefills(self) -> Mapping[str, int] | None:
        """Prompts for the servers of `prefill`, by what came of it: `offered`, `not_offered`, `failed`, or `skipped`
        while they do not answer. None without such servers."""
        return self._connection.servers.outcomes if isinstance(self._connection, PrefillConnection) else None

    def close(self) -> None:
        """Close the connection and cancel the requests that are still running.

        They end with RequestCancelled, and so do later requests. Every thread may call this, and more than once.
        """
        self._connection.close()
        if "_metrics_http" in self.__dict__:
            self._metrics_http.close()

    @functools.cached_property
    def _metrics_http(self) -> httpx.Client:
        # Making one takes 20 ms.
        return httpx.Client(timeout=self._timeouts.connect, trust_env=False)

    def _ask(self, question: Question[_T], seconds: float) -> _T:
        return ask(self._connection, question, seconds)

    def _ask_all(self, question: Question[_T], seconds: float) -> list[_T]:
        if not isinstance(self._fleet, FleetConnection):
            return [self._ask(question, seconds)]
        return self._fleet.ask_all(question, seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _start(
        self,
        prompt: Prompt | None,
        messages: Sequence[Message] | None,
        timeout: float | None,
        sampling: Sampling,
        *,
        stream: bool,
    ) -> TextStream:
        return self._send(make_request(self._model, prompt, messages, sampling, stream=stream), timeout)

    def _embedding(
        self,
        prompt: AnyPrompt,
        pooling_params: Mapping[str, object],
        timeout: float | None,
        queueing: Queueing,
    ) -> TextStream:
        return self._send(make_embedding_request(self._model, prompt, pooling_params, queueing), timeout)

    def _send(self, request: Request, timeout: float | None) -> TextStream:
        return TextStream(self._connection, request, within(self._timeouts, timeout), self._retry)


def _connect(servers: Servers[Connection], model: str) -> Connection:
    if servers.are_one:
        return servers.connect(servers.named[0])
    return FleetConnection(servers.named, servers.connect, servers.balance, model)
