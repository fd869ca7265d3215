"""gRPC for asyncio: one HTTP/2 channel, and one call on it per request."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

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

_PROBE_SECONDS = 5.0


class AsyncGrpcConnection:
    """See `AsyncConnection`."""

    def __init__(self, options: Options) -> None:
        settings = grpc_wire.channel_options(options)
        if options.tls is None:
            self._channel = grpc.aio.insecure_channel(options.address, options=settings)
        else:
            credentials = grpc_wire.credentials(options.tls)
            self._channel = grpc.aio.secure_channel(options.address, credentials, options=settings)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._infer = grpc_wire.one_request_stream(self._channel)
        self._metadata = grpc_wire.metadata(options)
        self.closed = False

    def start(self, request: Request, limits: TimeLimits) -> "AsyncGrpcCall":
        """See `AsyncConnection`."""
        if self.closed:
            raise client_closed()
        message = grpc_wire.encode(request, limits.total)
        metadata = [*self._metadata, *request.headers.items()]
        call = self._infer(message, timeout=limits.total, metadata=metadata)
        return AsyncGrpcCall(call, self, request.model, limits)

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
        try:
            return await getattr(self._stub, method)(message, timeout=timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            raise grpc_wire.error_of(error) from error

    async def explain(self, message: str, model: str) -> InflightError:
        """Return the error that the message of a failed response means; see `GrpcConnection.explain`."""
        if (error := error_of_model(message)) is not None:
            return error
        return InvalidRequest(message) if await self.is_ready(model, _PROBE_SECONDS) else ModelNotReady(message)

    async def close(self) -> None:
        """See `AsyncConnection`."""
        self.closed = True
        await self._channel.close()


class AsyncGrpcCall:
    """See `AsyncCall`."""

    def __init__(self, call: Any, connection: AsyncGrpcConnection, model: str, limits: TimeLimits) -> None:
        self._call = call
        self._connection = connection
        self._model = model
        self._limits = limits
        self._cancelled = False

    async def replies(self) -> AsyncGenerator[Reply, None]:
        """See `AsyncCall`."""
        try:
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
            raise grpc_wire.error_of(error) from error
        except asyncio.CancelledError:
            # gRPC raises this also if `cancel` or `close` ended the call and nobody cancelled the task.
            if self._cancelled or self._connection.closed:
                raise RequestCancelled("the request was cancelled") from None
            raise
        finally:
            self._call.cancel()  # In case the caller stopped reading before the end.

    async def _next(self, messages: AsyncIterator[Any], *, begun: bool) -> Any:
        """Return the next message, or None at the end. `begun`: it is not the first."""
        try:
            async with asyncio.timeout(self._limits.gap if begun else self._limits.first):
                return await anext(messages, None)
        except TimeoutError:
            raise self._limits.nothing_came(begun=begun) from None

    async def cancel(self) -> None:
        """See `AsyncCall`."""
        self._cancelled = self._call.cancel()
