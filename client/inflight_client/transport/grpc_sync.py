"""gRPC for threads: one HTTP/2 channel, and one call on it per request."""

import contextlib
import weakref
from collections.abc import Callable, Generator
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from inflight_client.errors import InflightError, InvalidRequest, ModelNotReady, client_closed, error_of_model
from inflight_client.options import Options, TimeLimits
from inflight_client.request import Request
from inflight_client.response import Reply
from inflight_client.server_info import ModelInfo, ServerInfo
from inflight_client.transport import grpc_wire
from inflight_client.transport.failure_detector import FailureDetector
from inflight_client.transport.grpc_channel import GrpcChannel, channels
from inflight_client.watchdog import Watch, Watchdog

_PROBE_SECONDS = 5.0


class GrpcConnection:
    """See `Connection`."""

    def __init__(self, options: Options) -> None:
        self._open = channels(options, grpc)
        self._channel = self._open()
        self._metadata = grpc_wire.metadata(options)
        self._watchdog = Watchdog()
        self.detector = FailureDetector(options.unreachable, self._probe, self._give_up)

    def start(self, request: Request, limits: TimeLimits) -> "GrpcCall":
        """See `Connection`."""
        message = grpc_wire.encode(request, limits.total)
        metadata = [*self._metadata, *request.headers.items()]

        def send(channel: GrpcChannel) -> Any:
            return channel.infer(message, timeout=limits.total, metadata=metadata)

        call, channel = self._on_channel(send)
        return GrpcCall(call, channel, self, request, self._watchdog, limits)

    def _on_channel(self, begin: Callable[[GrpcChannel], Any]) -> tuple[Any, GrpcChannel]:
        """Begin a call, and return it with its channel. Raises RequestCancelled after `close`."""
        while True:
            channel = self._channel
            try:
                return begin(channel), channel
            except ValueError as error:  # gRPC raises it because the channel is closed.
                if not channel.is_lost:
                    raise client_closed() from error

    def _probe(self) -> Any:
        def done(probe: Any) -> None:
            # All but a cancellation of our own says that there is somebody, also an error.
            if probe.code() is not grpc.StatusCode.CANCELLED:
                self.detector.heard()

        probe = self._channel.stub.ServerLive.future(
            service_pb2.ServerLiveRequest(), metadata=self._metadata, wait_for_ready=True
        )
        probe.add_done_callback(done)
        return probe

    def _give_up(self) -> None:
        """End the running calls, and connect anew."""
        lost, self._channel = self._channel, self._open()
        lost.is_lost = True
        lost.channel.close()

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
        def ask(channel: GrpcChannel) -> Any:
            try:
                return getattr(channel.stub, method)(message, timeout=timeout, metadata=self._metadata)
            except grpc.RpcError as error:
                raise channel.error_of(error) from error

        with self.detector.watching():
            answer, _ = self._on_channel(ask)
        self.detector.heard()
        return answer

    def explain(self, message: str, model: str) -> InflightError:
        """Return the error that the message of a failed response means."""
        # An error without a code comes from Triton, before the request reaches the model: either a tensor does not fit
        # the model, or the model does not exist or is not loaded.
        if (error := error_of_model(message)) is not None:
            return error
        return InvalidRequest(message) if self.is_ready(model, _PROBE_SECONDS) else ModelNotReady(message)

    def close(self) -> None:
        """See `Connection`."""
        self.detector.close()
        self._channel.channel.close()
        self._watchdog.close()


class GrpcCall:
    """See `Call`."""

    def __init__(
        self,
        call: Any,
        channel: GrpcChannel,
        connection: GrpcConnection,
        request: Request,
        watchdog: Watchdog,
        limits: TimeLimits,
    ) -> None:
        self._call = call
        self._channel = channel
        self._connection = connection
        self._request = request
        self._limits = limits
        self._watchdog = watchdog
        self._watch = self._watched(limits.first)

    def replies(self) -> Generator[Reply, None, None]:
        """See `Call`."""
        begun = False
        try:
            with self._connection.detector.watching():
                for message in self._call:
                    self._watch.pause()
                    self._connection.detector.heard()
                    begun = True
                    if message.error_message:
                        self._read_to_the_end()
                        raise self._connection.explain(message.error_message, self._request.model)
                    yield grpc_wire.decode(message.infer_response)
                    self._wait_for_next()
        except grpc.RpcError as error:
            if self._watch.expired:
                raise self._limits.nothing_came(begun=begun) from error
            raise self._channel.error_of(error) from error
        finally:
            self.cancel()  # In case the caller stopped reading before the end.

    def _watched(self, seconds: float) -> Watch:
        """Cancel the call after some seconds, unless the watch is done by then."""
        # A strong reference would keep a call running that was dropped before anybody read it. gRPC ends such a call
        # when it is collected.
        weak = weakref.WeakMethod(self._call.cancel)

        def cancel() -> None:
            if (method := weak()) is not None:
                method()

        return self._watchdog.watch(seconds, cancel)

    def _wait_for_next(self) -> None:
        """Bound the wait for the response after one that has come."""
        if self._watch.is_done:
            return  # The call was cancelled.
        if self._watch.seconds != self._limits.gap:
            self._watch.done()
            self._watch = self._watched(self._limits.gap)
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
