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

    def next(self) -> tuple[Server, TimeLimits]:
        """Begin on another server, and return the time limits that are left. `end` must follow.

        Raises:
            InflightError: there is no other server; the error is that of the last one.
        """
        server = self._fleet.begin(self._request, self._tried)
        if server is None:
            raise self._error or TransportError("there are no servers")
        self._tried.append(server)
        left = max(0.001, self._limits.total - (time.monotonic() - self._started))
        return server, TimeLimits(min(self._limits.first, left), self._limits.gap, left)

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
