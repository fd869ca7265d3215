"""`make load`: users who each send a request, read its stream to the end, and send the next.

Rows of the report, in milliseconds: `ttft` until the first text, `itl` from token to token (the mean of each
request), `e2e` until the end, whose content size is the number of tokens.
"""

from time import perf_counter

import gevent
from grpc.experimental.gevent import init_gevent
from locust import User, task

from inflight_client import Client, InflightError
from load_tests.workload import Task, tasks

# Before any channel: gRPC otherwise blocks the one thread on which all users run.
init_gevent()

PAUSE_AFTER_FAILURE = 1.0
WORKLOAD = tasks()


class StreamingUser(User):
    """A closed loop over the workload that all users share."""

    host = "127.0.0.1:8001"

    def on_start(self) -> None:
        self.client = Client(self.host)

    def on_stop(self) -> None:
        self.client.close()

    @task
    def stream(self) -> None:
        wanted = next(WORKLOAD)
        sent = perf_counter()
        try:
            arrivals = self.read(wanted)
        except InflightError as error:
            self.report("e2e", perf_counter() - sent, exception=type(error).__name__)
            # A refused user who asks again at once would be refused most of the time.
            gevent.sleep(PAUSE_AFTER_FAILURE)
            return
        first, last = arrivals[0], arrivals[-1]
        self.report("ttft", first - sent)
        self.report("itl", (last - first) / (wanted.output_tokens - 1))
        self.report("e2e", last - sent, tokens=wanted.output_tokens)

    def read(self, wanted: Task) -> list[float]:
        """Return the moments at which text came."""
        with self.client.stream(wanted.prompt, max_tokens=wanted.output_tokens, ignore_eos=True, seed=1) as stream:
            return [perf_counter() for _ in stream]

    def report(self, name: str, seconds: float, *, tokens: int = 0, exception: str | None = None) -> None:
        self.environment.events.request.fire(
            request_type="grpc",
            name=name,
            response_time=seconds * 1000,
            response_length=tokens,
            exception=exception,
            context={},
        )
