"""A gRPC channel to a server, for threads or for asyncio."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
from tritonclient.grpc import service_pb2_grpc

from inflight_client.errors import InflightError
from inflight_client.options import Options
from inflight_client.transport import grpc_wire


@dataclass(eq=False)
class GrpcChannel:
    """A channel, which is replaced when its server cannot be reached: gRPC would keep its connection for minutes."""

    options: Options
    channel: Any
    stub: Any
    infer: Any
    """Sends one request and reads its responses."""
    is_lost: bool = False
    """Whether it was closed because the server could not be reached."""

    def error_of(self, error: grpc.RpcError) -> InflightError:
        """Return the error that the status of a call means."""
        if self.is_lost and error.code() is grpc.StatusCode.CANCELLED:
            return self.options.no_answer()
        return grpc_wire.error_of(error)


def channels(options: Options, library: Any) -> Callable[[], GrpcChannel]:
    """Return what opens a channel. `library` is `grpc` or `grpc.aio`.

    Raises OSError if a certificate cannot be read.
    """
    settings = grpc_wire.channel_options(options)
    credentials = None if options.tls is None else grpc_wire.credentials(options.tls)

    def open_channel() -> GrpcChannel:
        if credentials is None:
            channel = library.insecure_channel(options.address, options=settings)
        else:
            channel = library.secure_channel(options.address, credentials, options=settings)
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        return GrpcChannel(options, channel, stub, grpc_wire.one_request_stream(channel))

    return open_channel
