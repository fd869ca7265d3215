"""Connects Triton's requests to the engine, with five threads and a watchdog.

Triton's thread     accepts requests: parses each, and submits or refuses it
long prompts thread does the same with long prompts, and answers questions about texts
engine thread       loads the model, then only runs steps
responder thread    detokenizes and sends; events that have piled up for one request become one response
maintenance thread  handles cancellations, metrics, the trace and the log, ten times a second
watchdog thread     notices each second whether one of them has ended, or a step does not
"""

import contextlib
import functools
import itertools
import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from inflight import InvalidRequest, QueueFull
from inflight.guided_decoding.grammar import Grammar
from inflight.kv_transfer.connector import Fetched
from inflight.outputs import Delta, TokenEvent
from inflight.request import CANCELLED, DEADLINE, ERROR, EXPIRED, INVALID, SHED
from serving import shared_memory
from serving.controls import Controls
from serving.drain import Drain
from serving.engine_thread import EngineThread
from serving.failures import Failures
from serving.guard import Guard
from serving.long_prompts import LongPrompts, is_long
from serving.metrics_export import MetricsExport
from serving.parse import ParsedRequest, parse
from serving.progress_log import ProgressLog
from serving.questions import Questions
from serving.response import ResponseFormat
from serving.sender import Sender
from serving.server_config import ServerConfig
from serving.stream import ResponseStream
from serving.streams import Streams
from serving.watchdog import Watchdog

logger = logging.getLogger(__name__)

# A cancelled request must end within 200 ms: one sweep, and one or two steps.
# Each query about a request or a metric is a round trip to Triton's process, on CPU cores that the model needs.
_SWEEP_SECONDS = 0.1
_SWEEPS_PER_UPDATE = 5
_JOIN_SECONDS = 10.0
# For the responder to pass on the errors of an engine that has died.
_SETTLE_SECONDS = 1.0
_CODES_OF_FAILED = {ERROR: "INTERNAL", INVALID: "INVALID_ARG"}
_CODES_OF_LATE = {EXPIRED: "DEADLINE_EXCEEDED", SHED: "UNAVAILABLE"}


class Server:
    """The engine behind one Triton model instance."""

    def __init__(
        self, engine_thread: EngineThread, config: ServerConfig, *, batched: bool, metric_labels: Mapping[str, str]
    ) -> None:
        """`batched`: the model's config has a batch dimension. Raises what `Engine` raises."""
        self._engine = engine = engine_thread.load()
        engine.grammars.prepare()
        if (shortage := shared_memory.shortage(engine.max_model_len)) is not None:
            logger.warning("%s", shortage)
        self._config = config
        self._form = ResponseFormat(engine.text_of, block_size=engine.config.block_size, batched=batched)
        self._questions = Questions(engine)
        self._metric_labels = metric_labels
        self._failures = Failures()
        self._streams = Streams()
        self._drain = Drain()
        self._long_prompts = LongPrompts()
        self._disk_reads = LongPrompts("disk reads", "prompts wait for the disk")
        self._controls = Controls(
            engine.core,
            self._form,
            self._streams,
            self._drain,
            is_alive=lambda: self.is_alive,
            cancel=self._cancel,
        )
        self._events = engine_thread.events
        self._stopping = threading.Event()
        self._threads = [
            engine_thread,
            threading.Thread(target=self._respond, name="responder", daemon=True),
            threading.Thread(target=self._maintain, name="maintenance", daemon=True),
            self._long_prompts,
            self._disk_reads,
        ]
        self._watchdog = Watchdog(metric_labels["model"], config, engine.core, self._threads, self._fail_all)

    def start(self) -> None:
        """Start the other threads. Raises what `Watchdog.start` raises."""
        for thread in self._threads[1:]:
            thread.start()
        self._watchdog.start()

    @property
    def is_alive(self) -> bool:
        """Whether all threads are running, and the engine does not stand still."""
        return self._watchdog.fault is None and all(thread.is_alive() for thread in self._threads)

    @property
    def is_ready(self) -> bool:
        """Whether new requests are served."""
        return self.is_alive and not self._drain.has_begun

    def _fail_all(self, message: str) -> None:
        """Refuse new requests, and end the unfinished ones with an error."""
        self._engine.core.close()
        self._streams.wait_until(lambda streams: not streams, _SETTLE_SECONDS)
        for stream in self._streams:
            self._give_up(stream, message, "INTERNAL")

    def stop(self) -> None:
        """End the threads. Waits at most 10 seconds for each."""
        self._watchdog.stop()
        engine, responder, maintenance, *doors = self._threads
        for door in (self._long_prompts, self._disk_reads):
            door.stop()
        for thread in doors:
            thread.join(_JOIN_SECONDS)
        self._engine.core.close()
        engine.join(_JOIN_SECONDS)
        with contextlib.suppress(queue.Full):  # The responder hangs; the last lines say so.
            self._events.put(None, timeout=_JOIN_SECONDS)
        responder.join(_JOIN_SECONDS)
        # Last, so that its final metrics, trace and log line are complete.
        self._stopping.set()
        maintenance.join(_JOIN_SECONDS)
        for thread in self._threads:
            if thread.is_alive():
                logger.error("the %s thread did not end within %.0f s", thread.name, _JOIN_SECONDS)

    # -- Triton's thread ---------------------------------------------------------------------------------------------

    def accept(self, request: Any) -> None:
        """Parse a request and submit it, or refuse it with an error.

        Raises nothing: an exception would also end the other requests of the same `execute` call.
        """
        sender = Sender(request)
        try:
            sender.read()
            if self._controls.answer(sender):
                return
            if (question := self._questions.asked(sender.parameters)) is not None:
                self._long_prompts.add("", functools.partial(self._answer_question, request, sender, question))
            else:
                self._drain.check_new()
                parsed = parse(request, self._engine.model.vocab_size, self._engine.max_model_len)
                self._submit(ResponseStream(sender, parsed, self._form, interval=self._config.stream_interval), parsed)
        except Exception as error:  # noqa: BLE001 - `refuse` answers it, and logs it unless the client caused it
            self._failures.refuse(sender, error)

    def _submit(self, stream: ResponseStream, parsed: ParsedRequest) -> None:
        """Submit a request, as soon as its grammar is compiled if it is guided, and its prompt's turn has come."""
        constraint = parsed.params.structured_outputs
        if constraint is None:
            self._streams.add(stream)
            self._enter(stream, parsed)
        else:
            compiled = self._engine.grammars.compile(constraint, parsed.options.tenant)
            self._streams.add(stream)
            compiled.add_done_callback(functools.partial(self._enter, stream, parsed))

    def _enter(self, stream: ResponseStream, parsed: ParsedRequest, compiled: "Future[Grammar] | None" = None) -> None:
        """Submit a request whose grammar is there. Raises nothing."""
        submit = functools.partial(self._submit_now, stream, parsed, compiled)
        if not is_long(parsed):
            self._enter_short(submit, parsed)
            return
        try:
            self._long_prompts.add(parsed.options.tenant, submit)
        except QueueFull as error:
            self._engine.release(parsed.options)
            self._streams.drop(stream)
            self._failures.refuse(stream.sender, error)

    def _enter_short(self, submit: Callable[..., bool], parsed: ParsedRequest) -> None:
        """Submit a request at once, or after what is on disk of its prompt is read. Raises nothing."""
        if self._engine.disk is not None:
            try:
                self._disk_reads.add(parsed.options.tenant, submit)
                return
            except QueueFull:  # Computing is faster than waiting for so many.
                pass
        submit(reads_disk=False)

    def _submit_now(
        self,
        stream: ResponseStream,
        parsed: ParsedRequest,
        compiled: "Future[Grammar] | None",
        *,
        reads_disk: bool = True,
    ) -> bool:
        """Submit a request, or refuse it. Return whether it was right. Raises nothing."""
        try:
            if self._has_ended(stream):
                self._engine.release(parsed.options)
                return True
            grammar = None if compiled is None else compiled.result()
            prompt = self._prompt(parsed)
            if parsed.pooling is not None:
                (request_id,) = stream.samples
                self._engine.submit_embedding(
                    prompt, parsed.pooling, parsed.options, request_id=request_id, reads_disk=reads_disk
                )
            elif (fetch := self._engine.fetch(prompt, parsed.options)) is not None:
                fetch.add_done_callback(functools.partial(self._submit_fetched, stream, parsed, grammar))
            else:
                self._engine.submit_samples(prompt, stream.params, parsed.options, grammar, reads_disk=reads_disk)
        except Exception as error:  # noqa: BLE001 - as in `accept`
            self._streams.drop(stream)
            self._failures.refuse(stream.sender, error)
            return not isinstance(error, InvalidRequest)
        return True

    def _submit_fetched(
        self, stream: ResponseStream, parsed: ParsedRequest, grammar: Grammar | None, fetch: "Future[Fetched]"
    ) -> None:
        """Submit a request for which another engine was asked. Raises nothing."""
        try:
            if not self._has_ended(stream):
                fetched = fetch.result()
                self._engine.submit_samples(fetched.prompt_ids, stream.params, parsed.options, grammar, fetched)
        except Exception as error:  # noqa: BLE001 - as in `accept`
            self._streams.drop(stream)
            self._failures.refuse(stream.sender, error)

    def _has_ended(self, stream: ResponseStream) -> bool:
        """Return whether a request that waits to be submitted has got its last response by now."""
        if stream in self._streams and stream.is_cancelled():
            self._give_up(stream, "the request was cancelled", "CANCELLED")
        return stream not in self._streams

    def _answer_question(self, request: Any, sender: Sender, question: str) -> bool:
        """Answer a question about the model, a text or tokens. Return whether it was right. Raises nothing."""
        try:
            sender.send(self._form.text(self._questions.answer(request, question)), final=True)
        except Exception as error:  # noqa: BLE001 - as in `accept`
            self._failures.refuse(sender, error)
            return not isinstance(error, InvalidRequest)
        return True

    def _prompt(self, parsed: ParsedRequest) -> str | Sequence[int]:
        if (chat := parsed.chat) is None:
            return parsed.prompt or ()
        return self._engine.chat_prompt_ids(chat.messages, tools=chat.tools, template_kwargs=chat.template_kwargs)

    def wait_for_room(self) -> None:
        """Return when fewer than `max_inflight_requests` are in the engine. Each sample of a request counts."""
        limit = self._config.max_inflight_requests
        if limit is not None:
            self._streams.wait_until(lambda streams: len(streams) < limit)

    # -- responder ---------------------------------------------------------------------------------------------------

    def _respond(self) -> None:
        while (events := self._next_events()) is not None:
            try:
                deltas = self._engine.process(events)
            except Exception as fault:
                logger.exception("%d events could not be processed", len(events))
                for stream in self._streams.of(event.request.request_id for event in events):
                    self._give_up(stream, f"{type(fault).__name__}: {fault}", "INTERNAL")
                continue
            for delta in deltas:
                stream = self._streams.get(delta.request.request_id)
                if stream is not None:  # Otherwise the request was dropped, and its last response has been sent.
                    self._take(stream, delta)
            for stream in self._streams.of(delta.request.request_id for delta in deltas):
                self._answer(stream)

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
            self._give_up(stream, delta.error or "", _CODES_OF_FAILED[delta.finish_reason])
        elif delta.finish_reason == CANCELLED:
            self._give_up(stream, "the request was cancelled", "CANCELLED")
        elif delta.finish_reason == DEADLINE and stream.wants_embedding:
            self._give_up(stream, "the deadline passed before the whole prompt was read", "DEADLINE_EXCEEDED")
        elif delta.finish_reason in _CODES_OF_LATE and not stream.has_output:
            self._give_up(stream, delta.error or "", _CODES_OF_LATE[delta.finish_reason])
        else:
            if delta.finish_reason in _CODES_OF_LATE:
                delta.finish_reason = DEADLINE  # The client gets what the other samples have.
            stream.add(delta)

    def _answer(self, stream: ResponseStream) -> None:
        try:
            if stream.flush():
                self._streams.drop(stream)
        except Exception as fault:
            logger.exception("a response of request %s could not be made or sent", stream.name)
            self._give_up(stream, f"the response could not be sent: {fault}", "INTERNAL")

    def _give_up(self, stream: ResponseStream, message: str, code: str) -> None:
        if code == "INTERNAL":
            logger.error("request %s ends with an error: %s", stream.name, message)
        self._streams.drop(stream)
        self._cancel(stream)
        self._failures.fail(stream.sender, message, code)

    def _cancel(self, stream: ResponseStream) -> None:
        for request_id in stream.samples:
            self._engine.cancel(request_id)

    # -- maintenance ------------------------------------------------------------------------------------------------

    def _maintain(self) -> None:
        log = ProgressLog(self._engine)
        metrics = MetricsExport(
            self._engine, self._failures.refusals, self._metric_labels, vllm_names=self._config.vllm_metric_names
        )
        guard = Guard()
        for sweep in itertools.count():
            if self._stopping.wait(_SWEEP_SECONDS):
                break
            for stream in self._streams:
                guard.run("looking for cancelled requests", functools.partial(self._cancel_if_asked, stream))
            guard.run("sending errors that wait", self._failures.send_waiting)
            only_live = sweep % _SWEEPS_PER_UPDATE > 0
            guard.run("updating the metrics", functools.partial(metrics.update, only_live=only_live))
            guard.run("writing traces", self._engine.flush_traces)
            guard.run("writing the log", log.tick)
        guard.run("writing traces", self._engine.close_traces)
        guard.run("updating the metrics", metrics.close)
        guard.run("writing the log", log.close)

    def _cancel_if_asked(self, stream: ResponseStream) -> None:
        if stream.is_cancelled():
            self._cancel(stream)
