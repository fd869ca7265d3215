"""gRPC for asyncio: one HTTP/2 channel, and one call on it per request."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2

from inflight_client.errors import (
    InflightError,
    InvalidRequest,
    ModelNotReady,
    RequestCancelled,
    client_closed,
    error_of_model,
)
from inflight_client.options import Options, TimeLimits
from inflight_client.request import Request
from inflight_client.response import Reply
from inflight_client.server_info import ModelInfo, ServerInfo
from inflight_client.transport import grpc_wire
from inflight_client.transport.async_failure_detector import AsyncFailureDetector
from inflight_client.transport.grpc_channel import GrpcChannel, channels

_PROBE_SECONDS = 5.0


class AsyncGrpcConnection:
    """See `AsyncConnection`."""

    def __init__(self, options: Options) -> None:
        self._open = channels(options, grpc.aio)
        self._channel = self._open()
        self._metadata = grpc_wire.metadata(options)
        self.detector = AsyncFailureDetector(options.unreachable, self._probe, self._give_up)
        self.closed = False

    def start(self, request: Request, limits: TimeLimits) -> "AsyncGrpcCall":
        """See `AsyncConnection`."""
        if self.closed:
            raise client_closed()
        message = grpc_wire.encode(request, limits.total)
        metadata = [*self._metadata, *request.headers.items()]
        call = self._channel.infer(message, timeout=limits.total, metadata=metadata)
        return AsyncGrpcCall(call, self._channel, self, request.model, limits)

    async def _probe(self) -> None:
        message = service_pb2.ServerLiveRequest()
        with contextlib.suppress(grpc.RpcError):  # An error, too, says that there is somebody.
            await self._channel.stub.ServerLive(message, metadata=self._metadata, wait_for_ready=True)
        self.detector.heard()

    async def _give_up(self) -> None:
        """End the running calls, and connect anew."""
        lost, self._channel = self._channel, self._open()
        lost.is_lost = True
        await lost.channel.close()

    async def is_ready(self, model: str, timeout: float) -> bool:
        """See `AsyncConnection`."""
        return bool((await self._ask("ModelReady", service_pb2.ModelReadyRequest(name=model), timeout)).ready)

    async def server_info(self, timeout: float) -> ServerInfo:
        """See `AsyncConnection`."""
        return grpc_wire.server_info(await self._ask("ServerMetadata", service_pb2.ServerMetadataRequest(), timeout))

    async def model_info(self, model: str, timeout: float) -> ModelInfo:
        """See `AsyncConnection`."""
        metadata = await self._ask("ModelMetadata", service_pb2.ModelMetadataRequest(name=model), timeout)
        config = await self._ask("ModelConfig", service_pb2.ModelConfigRequest(name=model), timeout)
        return grpc_wire.model_info(metadata, config)

    async def _ask(self, method: str, message: Any, timeout: float) -> Any:
        if self.closed:
            raise client_closed()
        channel = self._channel
        try:
            with self.detector.watching():
                answer = await getattr(channel.stub, method)(message, timeout=timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            raise channel.error_of(error) from error
        except asyncio.CancelledError:
            self.raise_why_ended(channel)
            raise
        self.detector.heard()
        return answer

    async def explain(self, message: str, model: str) -> InflightError:
        """Return the error that the message of a failed response means; see `GrpcConnection.explain`."""
        if (error := error_of_model(message)) is not None:
            return error
        return InvalidRequest(message) if await self.is_ready(model, _PROBE_SECONDS) else ModelNotReady(message)

    def raise_why_ended(self, channel: GrpcChannel) -> None:
        """Raise what has ended a call, unless the task was cancelled: gRPC raises CancelledError also if `close` has
        ended it, or the channel is lost."""
        task = asyncio.current_task()
        if task is None or task.cancelling():
            return
        if channel.is_lost:
            raise channel.options.no_answer() from None
        if self.closed:
            raise client_closed() from None

    async def close(self) -> None:
        """See `AsyncConnection`."""
        self.closed = True
        await self.detector.close()
        await self._channel.channel.close()


class AsyncGrpcCall:
    """See `AsyncCall`."""

    def __init__(
        self, call: Any, channel: GrpcChannel, connection: AsyncGrpcConnection, model: str, limits: TimeLimits
    ) -> None:
        self._call = call
        self._channel = channel
        self._connection = connection
        self._model = model
        self._limits = limits
        self._cancelled = False

    async def replies(self) -> AsyncGenerator[Reply, None]:
        """See `AsyncCall`."""
        try:
            with self._connection.detector.watching():
                messages = aiter(self._call)
                message = await self._next(messages, begun=False)
                while message is not None:
                    if message.error_message:
                        # Read to the end; `GrpcCall._read_to_the_end` says why.
                        async for _ in messages:
                            pass
                        raise await self._connection.explain(message.error_message, self._model)
                    yield grpc_wire.decode(message.infer_response)
                    message = await self._next(messages, begun=True)
        except grpc.RpcError as error:
            raise self._channel.error_of(error) from error
        except asyncio.CancelledError:
            # gRPC raises this also if `cancel` ended the call and nobody cancelled the task.
            if self._cancelled:
                raise RequestCancelled("the request was cancelled") from None
            self._connection.raise_why_ended(self._channel)
            raise
        finally:
            self._call.cancel()  # In case the caller stopped reading before the end.

    async def _next(self, messages: AsyncIterator[Any], *, begun: bool) -> Any:
        """Return the next message, or None at the end. `begun`: it is not the first."""
        try:
            async with asyncio.timeout(self._limits.gap if begun else self._limits.first):
                message = await anext(messages, None)
        except TimeoutError:
            raise self._limits.nothing_came(begun=begun) from None
        self._connection.detector.heard()
        return message

    async def cancel(self) -> None:
        """See `AsyncCall`."""
        # False if it has ended, also by an earlier cancellation that `replies` does not know of yet.
        if self._call.cancel():
            self._cancelled = True
