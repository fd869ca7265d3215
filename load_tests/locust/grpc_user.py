"""Locust users that stream over gRPC through the client library."""

from collections.abc import Iterator

from grpc.experimental.gevent import init_gevent

from inflight_client import Client, InflightError, RetryPolicy
from load_tests.endpoints import sampling_of
from load_tests.failures import failing
from load_tests.locust.load_user import LoadUser
from load_tests.prompts import PlannedRequest

# This must run before any channel is created. Otherwise gRPC blocks the one thread on which all users run.
init_gevent()


class GrpcUser(LoadUser):
    """Streams over Triton's gRPC."""

    kind = "grpc"
    host = "127.0.0.1:8001"

    def on_start(self) -> None:
        """Connect."""
        super().on_start()
        self.client = Client(self.address, retry=RetryPolicy(attempts=1))

    def on_stop(self) -> None:
        """Close the connection."""
        self.client.close()

    def answer(self, request: PlannedRequest, prompt: list[int]) -> Iterator[int]:
        """See `LoadUser`."""
        sampling = sampling_of(request)
        with failing(InflightError), self.client.stream(prompt, **sampling) as chunks:
            yield from (len(chunk.token_ids) for chunk in chunks if chunk.token_ids)
