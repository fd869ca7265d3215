"""The thread that sends what the engine has computed."""

import logging
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from inflight import Engine
from inflight.outputs import Delta, TokenEvent
from inflight.request import CANCELLED, DEADLINE, ERROR, INVALID
from serving.aborter import Aborter
from serving.failures import CODES_OF_LATE
from serving.stream import ResponseStream
from serving.streams import Streams

logger = logging.getLogger(__name__)

_CODES_OF_FAILED = {ERROR: "INTERNAL", INVALID: "INVALID_ARG"}


class Responder(threading.Thread):
    """Detokenizes the events of all waiting steps together, and sends a response for each of their requests."""

    def __init__(
        self, engine: Engine, events: queue.Queue[list[TokenEvent] | None], streams: Streams, aborter: Aborter
    ) -> None:
        super().__init__(name="responder", daemon=True)
        self._engine = engine
        self._events = events
        self._streams = streams
        self._aborter = aborter

    def run(self) -> None:
        """Work until the events end."""
        while (events := self._next_events()) is not None:
            try:
                deltas = self._engine.outputs.process(events)
            except Exception as fault:
                logger.exception("%d events could not be processed", len(events))
                for failed in self._streams.of(event.request.request_id for event in events):
                    self._aborter.abort(failed, f"{type(fault).__name__}: {fault}", "INTERNAL")
                continue
            for delta in deltas:
                stream = self._streams.get(delta.request.request_id)
                if stream is not None:  # Otherwise the request was dropped, and its last response has been sent.
                    with self._ended_by_fault(stream):
                        self._take(stream, delta)
            for changed in self._streams.of(delta.request.request_id for delta in deltas):
                with self._ended_by_fault(changed):
                    self._answer(changed)

    def _next_events(self) -> list[TokenEvent] | None:
        """Wait for the events of a step, and add those of later steps that are already queued. None at the end."""
        events = self._events.get()
        while events is not None and not self._events.empty():
            more = self._events.get()
            if more is None:
                self._events.put(None)  # For the next call: these events come first.
                break
            events = events + more
        return events

    def _take(self, stream: ResponseStream, delta: Delta) -> None:
        if delta.finish_reason in _CODES_OF_FAILED:
            self._aborter.abort(stream, delta.error or "", _CODES_OF_FAILED[delta.finish_reason])
        elif delta.finish_reason == CANCELLED:
            self._aborter.abort(stream, "the request was cancelled", "CANCELLED")
        elif delta.finish_reason == DEADLINE and stream.wants_embedding:
            self._aborter.abort(stream, "the deadline passed before the whole prompt was read", "DEADLINE_EXCEEDED")
        elif delta.finish_reason in CODES_OF_LATE and not stream.has_output:
            self._aborter.abort(stream, delta.error or "", CODES_OF_LATE[delta.finish_reason])
        else:
            if delta.finish_reason in CODES_OF_LATE:
                delta.finish_reason = DEADLINE  # The client gets what the other samples have.
            stream.add(delta)

    def _answer(self, stream: ResponseStream) -> None:
        if stream.flush():
            self._streams.drop(stream)

    @contextmanager
    def _ended_by_fault(self, stream: ResponseStream) -> Iterator[None]:
        """End a request, and no other, with an error if its response cannot be made or sent here."""
        try:
            yield
        except Exception as fault:
            logger.exception("a response of request %s could not be made or sent", stream.name)
            self._aborter.abort(stream, f"the response could not be sent: {fault}", "INTERNAL")
