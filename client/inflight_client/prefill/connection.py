"""Connections to servers for prompts and for the rest, for threads."""

import threading
import time
from collections.abc import Generator

from inflight_client.errors import InflightError, RequestCancelled
from inflight_client.options import TimeLimits
from inflight_client.prefill.prefill import FirstCall, Prefill, PrefillServers, second_call
from inflight_client.request import Request
from inflight_client.response import Reply
from inflight_client.server_info import ModelInfo, ServerInfo
from inflight_client.transport.connection import Call, Connection


class PrefillConnection:
    """See `Connection`. All but long prompts goes to `rest`."""

    def __init__(self, prefill: Prefill, prompts: Connection, rest: Connection) -> None:
        self.prefill, self.prompts, self.rest = prefill, prompts, rest
        self.servers = PrefillServers(prefill)

    def start(self, request: Request, limits: TimeLimits) -> Call:
        """See `Connection`."""
        if self.prefill.is_for(request):
            return PrefillCall(self, request, limits)
        return self.rest.start(request, limits)

    def is_ready(self, model: str, timeout: float) -> bool:
        """See `Connection`."""
        return self.rest.is_ready(model, timeout)

    def server_info(self, timeout: float) -> ServerInfo:
        """See `Connection`."""
        return self.rest.server_info(timeout)

    def model_info(self, model: str, timeout: float) -> ModelInfo:
        """See `Connection`."""
        return self.rest.model_info(model, timeout)

    def close(self) -> None:
        """See `Connection`."""
        self.prompts.close()
        self.rest.close()


class PrefillCall:
    """See `Call`: two calls, one after the other."""

    def __init__(self, connection: PrefillConnection, request: Request, limits: TimeLimits) -> None:
        self._connection, self._request, self._limits = connection, request, limits
        self._cancelled = threading.Event()
        self._call: Call | None = None

    def replies(self) -> Generator[Reply, None, None]:
        """See `Call`."""
        begun = time.monotonic()
        offer = None
        if (first := self._connection.servers.begin()) is not None:
            offer = first.end(self._ask(first))
        request, limits = second_call(self._request, self._limits, offer, time.monotonic() - begun)
        yield from self._start(self._connection.rest, request, limits).replies()

    def _ask(self, first: FirstCall) -> InflightError | None:
        """Let another server compute the prompt. Return why it has not."""
        try:
            asked = self._connection.prefill.first_call(self._request, self._limits)
            for reply in self._start(self._connection.prompts, *asked).replies():
                first.take(reply)
        except InflightError as error:
            return error
        return None

    def _start(self, connection: Connection, request: Request, limits: TimeLimits) -> Call:
        call = self._call = connection.start(request, limits)
        if self._cancelled.is_set():  # `cancel` may have come just before.
            call.cancel()
            raise RequestCancelled("the request was cancelled")
        return call

    def cancel(self) -> None:
        """See `Call`."""
        self._cancelled.set()
        if self._call is not None:
            self._call.cancel()
