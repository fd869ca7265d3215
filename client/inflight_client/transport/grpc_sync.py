"""gRPC for threads: one HTTP/2 channel, and one call on it per request."""

import contextlib
from collections.abc import Iterator
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from inflight_client.errors import InflightError, InvalidRequest, ModelNotReady, client_closed, error_of_model
from inflight_client.options import Options, TimeLimits
from inflight_client.request import Request
from inflight_client.response import Reply
from inflight_client.server_info import ModelInfo, ServerInfo
from inflight_client.transport import grpc_wire
from inflight_client.watchdog import Watchdog

_PROBE_SECONDS = 5.0


class GrpcConnection:
    """See `Connection`."""

    def __init__(self, options: Options) -> None:
        settings = grpc_wire.channel_options(options)
        if options.tls is None:
            self._channel = grpc.insecure_channel(options.address, options=settings)
        else:
            credentials = grpc_wire.credentials(options.tls)
            self._channel = grpc.secure_channel(options.address, credentials, options=settings)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._infer = grpc_wire.one_request_stream(self._channel)
        self._metadata = grpc_wire.metadata(options)
        self._watchdog = Watchdog()

    def start(self, request: Request, limits: TimeLimits) -> "GrpcCall":
        """See `Connection`."""
        message = grpc_wire.encode(request, limits.total)
        with _open_channel():
            metadata = [*self._metadata, *request.headers.items()]
            call = self._infer(message, timeout=limits.total, metadata=metadata)
        return GrpcCall(call, self, request, self._watchdog, limits)

    def is_ready(self, model: str, timeout: float) -> bool:
        """See `Connection`."""
        return bool(self._ask("ModelReady", service_pb2.ModelReadyRequest(name=model), timeout).ready)

    def server_info(self, timeout: float) -> ServerInfo:
        """See `Connection`."""
        return grpc_wire.server_info(self._ask("ServerMetadata", service_pb2.ServerMetadataRequest(), timeout))

    def model_info(self, model: str, timeout: float) -> ModelInfo:
        """See `Connection`."""
        metadata = self._ask("ModelMetadata", service_pb2.ModelMetadataRequest(name=model), timeout)
        config = self._ask("ModelConfig", service_pb2.ModelConfigRequest(name=model), timeout)
        return grpc_wire.model_info(metadata, config)

    def _ask(self, method: str, message: Any, timeout: float) -> Any:
        try:
            with _open_channel():
                return getattr(self._stub, method)(message, timeout=timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            raise grpc_wire.error_of(error) from error

    def explain(self, message: str, model: str) -> InflightError:
        """Return the error that the message of a failed response means."""
        # An error without a code comes from Triton, before the request reaches the model: either a tensor does not fit
        # the model, or the model does not exist or is not loaded.
        if (error := error_of_model(message)) is not None:
            return error
        return InvalidRequest(message) if self.is_ready(model, _PROBE_SECONDS) else ModelNotReady(message)

    def close(self) -> None:
        """See `Connection`."""
        self._channel.close()
        self._watchdog.close()


@contextlib.contextmanager
def _open_channel() -> Iterator[None]:
    """Raise RequestCancelled where gRPC raises ValueError because the channel is closed."""
    try:
        yield
    except ValueError as error:
        raise client_closed() from error


class GrpcCall:
    """See `Call`."""

    def __init__(
        self, call: Any, connection: GrpcConnection, request: Request, watchdog: Watchdog, limits: TimeLimits
    ) -> None:
        self._call = call
        self._connection = connection
        self._request = request
        self._limits = limits
        self._watchdog = watchdog
        self._watch = watchdog.watch(limits.first, call.cancel)

    def replies(self) -> Iterator[Reply]:
        """See `Call`."""
        begun = False
        try:
            for message in self._call:
                self._watch.pause()
                begun = True
                if message.error_message:
                    self._read_to_the_end()
                    raise self._connection.explain(message.error_message, self._request.model)
                yield grpc_wire.decode(message.infer_response)
                self._wait_for_next()
        except grpc.RpcError as error:
            if self._watch.expired:
                raise self._limits.nothing_came(begun=begun) from error
            raise grpc_wire.error_of(error) from error
        finally:
            self.cancel()  # In case the caller stopped reading before the end.

    def _wait_for_next(self) -> None:
        """Bound the wait for the response after one that has come."""
        if self._watch.is_done:
            return  # The call was cancelled.
        if self._watch.seconds != self._limits.gap:
            self._watch.done()
            self._watch = self._watchdog.watch(self._limits.gap, self._call.cancel)
        self._watch.resume()

    def _read_to_the_end(self) -> None:
        # If a cancellation crosses the last response, Triton 24.10 may never unload the model.
        with contextlib.suppress(grpc.RpcError):
            for _ in self._call:
                pass

    def cancel(self) -> None:
        """See `Call`."""
        self._watch.done()
        self._call.cancel()
