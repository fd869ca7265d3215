"""Connects Triton's requests to the engine, with these threads:

Triton's thread     accepts requests: parses each, and submits or refuses it
workers             do what takes long before a request is submitted, and answer questions about texts: a thread each
                    for long prompts, for images, for blocks on disk and for LoRA adapters
engine thread       loads the model, then only runs steps
responder thread    detokenizes and sends; events that have piled up for one request become one response
maintenance thread  handles cancellations, metrics, the trace and the log, ten times a second
watchdog thread     notices, four times a second, whether one of them has ended, or a step does not
"""

import contextlib
import functools
import logging
import queue
from collections.abc import Mapping
from typing import Any

from inflight import InvalidRequest
from serving import shared_memory
from serving.aborter import Aborter
from serving.adapter_reads import AdapterReads
from serving.controls import Controls
from serving.drain import Drain
from serving.engine_thread import EngineThread
from serving.failures import Failures
from serving.guardian import Guardian
from serving.maintenance import Maintenance
from serving.parse import ParsedRequest, parse
from serving.preparation import Preparation
from serving.questions import Questions
from serving.read_fields import read_fields
from serving.responder import Responder
from serving.response import ResponseFormat
from serving.sender import Sender
from serving.server_config import TENSORRT_LLM, TENSORRT_LLM_ENSEMBLE, ServerConfig
from serving.stream import ResponseStream
from serving.streams import Streams
from serving.tenant_worker import TenantWorker
from serving.tensorrt_llm.ensemble_format import EnsembleFormat
from serving.tensorrt_llm.token_format import TokenFormat
from serving.tensorrt_llm.token_request import TokenRequest
from serving.watchdog import Watchdog

logger = logging.getLogger(__name__)

_JOIN_SECONDS = 10.0
# Each may have 32 MiB of files, and waits with them.
_MAX_IMAGE_PROMPTS = 16
_MAX_IMAGE_PROMPTS_IN_ALL = 64
# A large image may take all processors for many seconds. Beside steps, its encoder gets about a tenth of them.
_IMAGE_NICENESS = 10
# For the responder to pass on the errors of an engine that has died.
_SETTLE_SECONDS = 1.0


class Server:
    """The engine behind one Triton model instance."""

    def __init__(
        self,
        engine_thread: EngineThread,
        config: ServerConfig,
        guardian: Guardian | None,
        *,
        batched: bool,
        metric_labels: Mapping[str, str],
    ) -> None:
        """`batched`: the model's config has a batch dimension. Raises what `Engine` raises."""
        self._engine = engine = engine_thread.load()
        engine.grammars.prepare()
        if (shortage := shared_memory.shortage(engine.max_model_len)) is not None:
            logger.warning("%s", shortage)
        self._config = config
        self._takes_tokens = config.request_format == TENSORRT_LLM
        forms = {TENSORRT_LLM: TokenFormat, TENSORRT_LLM_ENSEMBLE: EnsembleFormat}
        form = forms.get(config.request_format, ResponseFormat)
        self._form = form(engine.model.text_of, block_size=engine.config.block_size, batched=batched)
        self._questions = Questions(engine)
        self._failures = Failures()
        self._streams = Streams()
        self._aborter = Aborter(engine, self._streams, self._failures)
        self._drain = Drain()
        self._long_prompts = TenantWorker("long prompts", "long prompts wait to be tokenized")
        self._images = TenantWorker(
            "images",
            "prompts with images wait to be read",
            most=_MAX_IMAGE_PROMPTS,
            most_in_all=_MAX_IMAGE_PROMPTS_IN_ALL,
            niceness=_IMAGE_NICENESS,
        )
        self._disk_reads = TenantWorker("disk reads", "prompts wait for the disk")
        self._adapter_reads = AdapterReads(engine, self._streams, self._aborter)
        self._workers = (self._long_prompts, self._images, self._disk_reads, self._adapter_reads)
        self._preparation = Preparation(engine, self._streams, self._failures, self._aborter, *self._workers)
        self._controls = Controls(
            engine.core,
            self._form,
            self._streams,
            self._drain,
            is_alive=lambda: self.is_alive,
            cancel=self._aborter.cancel,
        )
        self._events = engine_thread.events
        self._maintenance = Maintenance(
            engine,
            self._streams,
            self._failures,
            self._aborter,
            metric_labels,
            vllm_names=config.vllm_metric_names,
        )
        self._threads = [
            engine_thread,
            Responder(engine, self._events, self._streams, self._aborter),
            self._maintenance,
            *self._workers,
        ]
        self._watchdog = Watchdog(guardian, config, engine.core, self._threads, self._fail_all)

    def start(self) -> None:
        """Start the other threads."""
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
            self._aborter.abort(stream, message, "INTERNAL")

    def stop(self) -> None:
        """End the threads. Waits at most 10 seconds for each."""
        self._watchdog.stop()
        engine, responder, maintenance, *_ = self._threads
        for worker in self._workers:
            worker.stop()
        for worker in self._workers:
            worker.join(_JOIN_SECONDS)
        self._engine.core.close()
        engine.join(_JOIN_SECONDS)
        with contextlib.suppress(queue.Full):  # The responder hangs; the last lines say so.
            self._events.put(None, timeout=_JOIN_SECONDS)
        responder.join(_JOIN_SECONDS)
        # Last, so that its final metrics, trace and log line are complete.
        self._maintenance.stop()
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
                tenant = read_fields({"tenant": sender.parameters.get("tenant")}).get("tenant", "")
                self._long_prompts.add(tenant, functools.partial(self._answer_question, request, sender, question))
            else:
                self._drain.check_new()
                parsed = self._parsed(request)
                interval, apart = self._config.stream_interval, self._form.sends_apart(request)
                stream = ResponseStream(sender, parsed, self._form, interval=interval, apart=apart)
                self._preparation.begin(stream, parsed)
        except Exception as error:  # noqa: BLE001 - `refuse` answers it, and logs it unless the client caused it
            self._failures.refuse(sender, error)

    def _parsed(self, request: Any) -> ParsedRequest:
        model, exclude_input = self._engine.model, self._config.exclude_input_in_output
        if self._takes_tokens:
            request = TokenRequest(request, model.text_of, exclude_input=exclude_input)
        return parse(request, model.num_logits, self._engine.max_model_len, exclude_input=exclude_input)

    def _answer_question(self, request: Any, sender: Sender, question: str) -> bool:
        """Answer a question about the model, a text or tokens. Return whether it was right. Raises nothing."""
        try:
            sender.send(self._form.text(self._questions.answer(request, question)), final=True)
        except Exception as error:  # noqa: BLE001 - as in `accept`
            self._failures.refuse(sender, error)
            return not isinstance(error, InvalidRequest)
        return True

    def wait_for_room(self) -> None:
        """Return when fewer than `max_inflight_requests` are in the engine. Each sample of a request counts."""
        limit = self._config.max_inflight_requests
        if limit is not None:
            self._streams.wait_until(lambda streams: len(streams) < limit)
