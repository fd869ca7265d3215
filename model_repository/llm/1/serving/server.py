"""Ties Triton's requests to the engine: who accepts, who steps, who answers, who looks after the rest.

Triton's thread     accept: parse, submit or refuse, return
engine thread       steps, nothing else
responder thread    detokenises and sends; what piled up for a request goes out as one response
housekeeping thread cancellations and the log, ten times a second
"""

import logging
import queue
import threading
import uuid
from typing import Any

import triton_python_backend_utils as pb_utils

from inflight import Engine, EngineDead, InvalidRequest, QueueFull
from inflight.outputs import Delta, TokenEvent
from inflight.request import CANCELLED, ERROR
from serving.parse import ParsedRequest, parse
from serving.progress_log import ProgressLog
from serving.stream import ResponseStream

logger = logging.getLogger(__name__)

_SWEEP_SECONDS = 0.1
_JOIN_SECONDS = 10.0


class Server:
    """The engine behind one Triton model instance."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._streams: dict[str, ResponseStream] = {}
        # Bounded by the requests in flight: one list of events a step, and a step makes at most one event for each.
        self._events: queue.SimpleQueue[list[TokenEvent] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=engine.core.run, args=(self._events.put,), name="engine", daemon=True),
            threading.Thread(target=self._respond, name="responder", daemon=True),
            threading.Thread(target=self._keep_house, name="housekeeping", daemon=True),
        ]

    def start(self) -> None:
        """Begin to step and answer."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads; each gets a bounded time."""
        self._stopping.set()
        self._engine.core.close()
        self._threads[0].join(_JOIN_SECONDS)
        self._events.put(None)
        for thread in self._threads[1:]:
            thread.join(_JOIN_SECONDS)
        for thread in self._threads:
            if thread.is_alive():
                logger.error("the %s thread did not end within %.0f s", thread.name, _JOIN_SECONDS)

    # -- Triton's thread ---------------------------------------------------------------------------------------------

    def accept(self, request: Any) -> None:
        """Parse a request and submit it, or answer why not. Raises nothing: that would end its neighbours too."""
        try:
            parsed = parse(request)
        except InvalidRequest as error:
            _refuse(request, str(error), "INVALID_ARG")
        except Exception as fault:
            logger.exception("a request could not be parsed")
            _refuse(request, f"{type(fault).__name__}: {fault}", "INTERNAL")
        else:
            self._submit(request, parsed)

    def _submit(self, request: Any, parsed: ParsedRequest) -> None:
        # Clients choose Triton's request ids, so those may repeat.
        request_id = uuid.uuid4().hex
        opening = parsed.prompt or "" if parsed.prepend_prompt else ""
        stream = ResponseStream(request, streaming=parsed.stream, opening=opening)
        self._streams[request_id] = stream
        try:
            prompt = parsed.prompt if parsed.prompt is not None else self._engine.chat_prompt_ids(parsed.messages)
            self._engine.submit(prompt, parsed.params, request_id=request_id)
        except InvalidRequest as error:
            self._end(request_id, str(error), "INVALID_ARG")
        except QueueFull as error:
            self._end(request_id, str(error), "UNAVAILABLE")
        except EngineDead as error:
            self._end(request_id, str(error), "INTERNAL")
        except Exception as fault:
            logger.exception("a request could not be submitted")
            self._end(request_id, f"{type(fault).__name__}: {fault}", "INTERNAL")

    def _end(self, request_id: str, message: str, code: str) -> None:
        self._streams.pop(request_id).fail(message, code)

    # -- responder ---------------------------------------------------------------------------------------------------

    def _respond(self) -> None:
        while (events := self._next_events()) is not None:
            try:
                deltas = self._engine.process(events)
            except Exception as fault:
                logger.exception("the output of %d events could not be made", len(events))
                self._give_up({event.request.request_id for event in events}, fault)
                continue
            for delta in deltas:
                self._answer(delta)

    def _next_events(self) -> list[TokenEvent] | None:
        """Wait for a step's events and take along those of later steps that are there already; None at the end."""
        events = self._events.get()
        while events is not None and not self._events.empty():
            more = self._events.get()
            if more is None:
                self._events.put(None)  # For the next call: these events come first.
                break
            events = events + more
        return events

    def _answer(self, delta: Delta) -> None:
        output = delta.output
        stream = self._streams.get(output.request_id)
        if stream is None:
            return  # It was given up; its last response is out.
        if output.finished:
            del self._streams[output.request_id]
        try:
            if output.finish_reason == ERROR:
                stream.fail(output.error or "", "INTERNAL")
            elif output.finish_reason == CANCELLED:
                stream.fail("the request was cancelled", "CANCELLED")
            else:
                stream.show(delta.text, output.finish_reason)
        except pb_utils.TritonModelException:
            logger.exception("a response could not be sent; its request is dropped")
            self._streams.pop(output.request_id, None)
            self._engine.cancel(output.request_id)

    def _give_up(self, request_ids: set[str], fault: Exception) -> None:
        for request_id in request_ids:
            self._engine.cancel(request_id)
            stream = self._streams.pop(request_id, None)
            if stream is not None:
                stream.fail(f"{type(fault).__name__}: {fault}", "INTERNAL")

    # -- housekeeping ------------------------------------------------------------------------------------------------

    def _keep_house(self) -> None:
        log = ProgressLog(self._engine)
        while not self._stopping.wait(_SWEEP_SECONDS):
            for request_id, stream in list(self._streams.items()):
                if stream.is_cancelled():
                    self._engine.cancel(request_id)
            log.tick()
        log.close()


def _refuse(request: Any, message: str, code: str) -> None:
    ResponseStream(request, streaming=False, opening="").fail(message, code)
