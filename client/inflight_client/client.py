"""The client: one HTTP/2 channel to a server, on which each request is a call of its own."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self, Unpack

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from inflight_client.errors import (
    ERROR_OF_CODE,
    ERROR_OF_STATUS,
    InflightError,
    InvalidRequest,
    ModelNotReady,
    ServerFault,
    ServerOverloaded,
    TransportError,
)
from inflight_client.request import Message, Sampling, encode
from inflight_client.response import Completion
from inflight_client.stream import TextStream

READY_TIMEOUT = 5.0


class Client:
    """Client of one model on one server.

    Any number of threads may use one client at once; their requests share its connection and each can be
    cancelled alone. Nothing is sent before the first call.
    """

    def __init__(self, url: str, *, model: str = "llm") -> None:
        """`url` is the gRPC address, such as "127.0.0.1:8001"."""
        self._model = model
        self._channel = grpc.insecure_channel(url)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        timeout: float = 600.0,
        **sampling: Unpack[Sampling],
    ) -> TextStream:
        """Send a prompt, or the messages of a chat, and return the answer as it is written.

        Use it as a context manager, so that leaving early cancels. `timeout` is in seconds, for all of the
        answer. Errors of the request are raised while iterating.
        """
        return self._start(encode(self._model, prompt, messages, sampling, stream=True), timeout)

    def generate(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        timeout: float = 600.0,
        **sampling: Unpack[Sampling],
    ) -> Completion:
        """Send a prompt, or the messages of a chat, and return the finished answer.

        `timeout` is in seconds. Raises an `InflightError` when the request fails.
        """
        request = encode(self._model, prompt, messages, sampling, stream=False)
        with self._start(request, timeout) as stream:
            chunks = list(stream)
        reason = chunks[-1].finish_reason
        assert reason is not None  # a stream that ends without a reason raises
        return Completion("".join(chunk.text for chunk in chunks), reason)

    def is_ready(self) -> bool:
        """Whether the model takes requests now; False too if no server answers within five seconds."""
        try:
            return self._model_ready()
        except grpc.RpcError:
            return False

    def close(self) -> None:
        """Close the connection; requests still running are cancelled."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self, request: service_pb2.ModelInferRequest, timeout: float) -> TextStream:
        call = self._stub.ModelStreamInfer(iter([request]), timeout=timeout)
        return TextStream(call, self._explain)

    def _model_ready(self) -> bool:
        request = service_pb2.ModelReadyRequest(name=self._model)
        return bool(self._stub.ModelReady(request, timeout=READY_TIMEOUT).ready)

    def _explain(self, error: grpc.RpcError | str) -> InflightError:
        """Turn what ended a stream into the error to raise."""
        if isinstance(error, str):
            # The model was asked to begin with the code. What Triton refuses before the model sees it has none: a
            # tensor that does not fit the model, or a model that is not there.
            code, _, message = error.partition(": ")
            if code in ERROR_OF_CODE:
                return ERROR_OF_CODE[code](message)
            return self._ask_why(error, if_ready=InvalidRequest)
        # gRPC has one code for "too much load" and "no connection".
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return self._ask_why(error.details(), if_ready=ServerOverloaded)
        return ERROR_OF_STATUS.get(error.code(), ServerFault)(error.details())

    def _ask_why(self, message: str, if_ready: type[InflightError]) -> InflightError:
        try:
            ready = self._model_ready()
        except grpc.RpcError:
            return TransportError(message)
        return if_ready(message) if ready else ModelNotReady(message)
