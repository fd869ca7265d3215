"""The client for threads."""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from types import TracebackType
from typing import Self, Unpack

import httpx

from inflight_client.errors import InflightError, TransportError
from inflight_client.metrics import MetricsSnapshot, parse_metrics
from inflight_client.options import TLS, Options, Timeouts, connection_options, metrics_url_of, within
from inflight_client.progress import progress_bar
from inflight_client.request import Message, Prompt, Sampling, make_request, request_for_requests
from inflight_client.response import Completion
from inflight_client.retry import RetryPolicy
from inflight_client.server_info import ModelInfo, ServerInfo, UnfinishedRequest, read_unfinished_requests
from inflight_client.stream import TextStream
from inflight_client.transport.connection import Connection
from inflight_client.transport.grpc_sync import GrpcConnection
from inflight_client.transport.http_sync import HttpConnection

_TRANSPORTS: dict[str, Callable[[Options], Connection]] = {"grpc": GrpcConnection, "http": HttpConnection}


class Client:
    """Client of one model on one server.

    Any number of threads may use one client at once; their requests share its connection and each can be cancelled
    alone. Nothing is sent before the first call. A program that goes on after Ctrl-C is better off with `AsyncClient`:
    a KeyboardInterrupt in the thread that reads from gRPC can leave a lock of gRPC's held, for which later calls wait.

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
    ) -> None:
        """Say where the server is.

        Args:
            url: host and port, after `grpc://` (or nothing), `grpcs://`, `http://` or `https://`.
            model: the model's name; `llm` unless the server calls it otherwise.
            timeouts: how long to wait.
            retry: what to send again after which waits.
            headers: sent with every call, such as {"authorization": "Bearer ..."}.
            tls: certificates; without, those of the system are trusted where the URL is encrypted.
            metrics_url: where `metrics` looks; port 8002 of the same host if not given.

        Raises:
            ValueError: the URL is none of these.
            OSError: a certificate can't be read.
        """
        self._model = model
        self._timeouts = timeouts or Timeouts()
        self._retry = retry or RetryPolicy()
        transport, options = connection_options(url, tls, headers, self._timeouts)
        self._metrics_url = metrics_url or metrics_url_of(options.address)
        self._connection = _TRANSPORTS[transport](options)

    def generate(
        self,
        prompt: Prompt | None = None,
        *,
        messages: Sequence[Message] | None = None,
        timeout: float | None = None,
        **sampling: Unpack[Sampling],
    ) -> Completion:
        """Send a prompt (text or token ids), or the messages of a chat, and return the finished answer.

        `timeout` is in seconds and takes the place of `Timeouts.total`. Raises an `InflightError` where the request
        fails, and TypeError for a sampling parameter that does not exist.

        >>> answer = client.generate("A, B, C,", max_tokens=4, temperature=0)
        >>> answer.text, answer.finish_reason, answer.usage
        (' D, E,', 'length', Usage(prompt_tokens=6, completion_tokens=4))
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
        """As `generate`, but return the answer while it is written. Errors are raised while iterating.

        Use it as a context manager, so that leaving early cancels:

        >>> with client.stream("A, B, C,", max_tokens=4, temperature=0) as stream:
        ...     for chunk in stream:
        ...         print(chunk.text, end="")
         D, E,
        """
        return self._start(prompt, messages, timeout, sampling, stream=True)

    def chat(
        self, messages: Sequence[Message], *, timeout: float | None = None, **sampling: Unpack[Sampling]
    ) -> Completion:
        """`generate` for the messages of a chat, which the model's chat template turns into a prompt.

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
        """Answers to many prompts in their order, at most `concurrency` of them at once.

        `progress` shows a bar on standard error. Raises the error of the first request that fails for good, after
        cancelling the others.

        >>> answers = client.generate_many(["Monday, Tuesday,", "A, B, C,"], max_tokens=2, temperature=0)
        >>> [answer.text for answer in answers]
        [' Wednesday,', ' D,']
        """
        streams: set[TextStream] = set()
        stopping = threading.Event()

        def answer(prompt: Prompt) -> Completion:
            with self._start(prompt, None, timeout, sampling, stream=False) as stream:
                streams.add(stream)
                if stopping.is_set():  # After `add`: whoever sets it cancels those that it finds there.
                    stream.cancel()
                try:
                    return stream.completion()
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
        """Whether the model takes requests now; False too if no server answers in time."""
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

    def unfinished_requests(self) -> list[UnfinishedRequest]:
        """The requests that wait or run, at most 100, the oldest first."""
        bound = self._timeouts.connect
        call = self._connection.start(request_for_requests(self._model), first=bound, total=bound)
        texts = [text for reply in call.replies() for text in reply.texts]
        return read_unfinished_requests("".join(texts))

    def metrics(self) -> MetricsSnapshot:
        """The server's metrics now. Raises TransportError where there are none.

        >>> client.metrics().value("inflight:num_requests_running", model="llm") >= 0
        True
        """
        try:
            response = httpx.get(self._metrics_url, timeout=self._timeouts.connect, trust_env=False)
            response.raise_for_status()
            return parse_metrics(response.text)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise TransportError(f"no metrics at {self._metrics_url}: {error}") from error

    def close(self) -> None:
        """Close the connection; requests still running are cancelled."""
        self._connection.close()

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
        request = make_request(self._model, prompt, messages, sampling, stream=stream)
        return TextStream(self._connection, request, within(self._timeouts, timeout), self._retry)
