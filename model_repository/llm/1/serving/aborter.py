"""Ends unfinished requests."""

import logging

from inflight import Engine
from serving.failures import Failures
from serving.stream import ResponseStream
from serving.streams import Streams

logger = logging.getLogger(__name__)


class Aborter:
    """Ends requests in the engine and for their clients. Any thread may use it."""

    def __init__(self, engine: Engine, streams: Streams, failures: Failures) -> None:
        self._engine = engine
        self._streams = streams
        self._failures = failures

    def cancel(self, stream: ResponseStream) -> None:
        """End a request in the engine. The responder tells the client.

        If the engine does not know the request yet, it ends when it would be submitted.
        """
        stream.cancel()
        for request_id in stream.samples:
            self._engine.cancel(request_id)

    def abort(self, stream: ResponseStream, message: str, code: str) -> None:
        """End a request with an error."""
        if code == "INTERNAL":
            logger.error("request %s ends with an error: %s", stream.name, message)
        self._streams.drop(stream)
        self.cancel(stream)
        self._failures.fail(stream.sender, message, code)
