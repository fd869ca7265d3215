"""The servers that one request has tried."""

import time

from inflight_client.errors import InflightError, TransportError
from inflight_client.fleet.fleet import Fleet, may_move
from inflight_client.fleet.server import Server
from inflight_client.options import TimeLimits
from inflight_client.request import Request


class Attempts:
    """Moves a request from server to server, until one takes it."""

    def __init__(self, fleet: Fleet, request: Request, limits: TimeLimits) -> None:
        self._fleet, self._request, self._limits = fleet, request, limits
        self._started = time.monotonic()
        self._tried: list[Server] = []
        self._error: InflightError | None = None

    def next(self) -> tuple[Server, Request, TimeLimits]:
        """Begin on another server. `end` must follow.

        Return the server, the request with the time that is left of its own limits, and the limits of the attempt.

        Raises:
            InflightError: there is no other server; the error is that of the last one.
        """
        server = self._fleet.begin(self._request, self._tried)
        if server is None:
            raise self._error or TransportError("there are no servers")
        # The first server gets all of the time, so that its messages show the caller's own numbers.
        passed = time.monotonic() - self._started if self._tried else 0.0
        self._tried.append(server)
        left = max(0.001, self._limits.total - passed)
        limits = TimeLimits(min(self._limits.first, left), self._limits.gap, left)
        return server, self._request.after(passed), limits

    def end(self, error: InflightError | None) -> None:
        """The attempt has ended, perhaps with an error."""
        self._fleet.end(self._tried[-1], error)

    def check(self, error: InflightError, *, begun: bool) -> None:
        """Raise the error unless another server may do better.

        `begun`: the client has got a part of the answer, so no other server may begin anew.
        """
        if begun or not may_move(error):
            raise error
        self._error = error
