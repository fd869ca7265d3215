"""One client request: its samples and its responses."""

import dataclasses
import json
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Any

import triton_python_backend_utils as pb_utils

from inflight import RequestOptions, SamplingParams
from inflight.outputs import Delta
from serving.parse import ParsedRequest
from serving.response import ResponseFormat, Sample

# gRPC carries errors in headers, of which its clients take 8 KiB; a character may need 12 bytes there.
_LONGEST_MESSAGE = 600


class ResponseStream:
    """Sends one request's responses; safe to use from the threads that send and the one that looks for cancellation."""

    def __init__(self, sender: "Sender", parsed: ParsedRequest, form: ResponseFormat, *, interval: int) -> None:
        """`interval`: most tokens that wait to go out together."""
        self._sender = sender
        self._interval, self._begun = interval, False
        self._form = form
        self._outputs = parsed.outputs
        self._streaming = parsed.stream
        self._options, self._arrival = parsed.options, time.monotonic()
        self.cancel_key = sender.parameters.get("cancel_key")
        """By which another request may cancel this one."""
        opening = [str(parsed.prompt)] if parsed.prepend_prompt else []
        # Clients choose Triton's request ids, so those may repeat.
        run = uuid.uuid4().hex
        self.samples = {f"{run}-{i}": Sample(text=list(opening)) for i in range(parsed.num_samples)}
        """By the id under which the engine knows each."""
        self.unsubmitted = {
            request_id: _sample_params(parsed.params, i) for i, request_id in enumerate(self.samples) if i > 0
        }
        """Samples that wait until the first one's prompt is in the cache, to share its blocks."""

    @property
    def name(self) -> str:
        """What the log and `inflight top` call it: the client's own name, or else the engine's."""
        return self._options.client_request_id or self.first_id

    def summary(self) -> dict[str, object]:
        """Who asks, for how long, and how far the answer is."""
        return {
            "request_id": self.name,
            "tenant": self._options.tenant,
            "seconds": round(time.monotonic() - self._arrival, 3),
            "output_tokens": sum(sample.num_tokens for sample in self.samples.values()),
        }

    @property
    def first_id(self) -> str:
        """The engine's id of the first sample."""
        return next(iter(self.samples))

    def options_left(self) -> RequestOptions:
        """What the client asked for, its limits less the time that has passed."""
        return self._options.after(time.monotonic() - self._arrival)

    def add(self, delta: Delta) -> None:
        """Take in what a step made of a sample; `flush` sends it."""
        self.samples[delta.request.request_id].add(delta)

    def flush(self) -> bool:
        """Send what is new if it is time: each piece when streaming, all at the end when not. True if that was all."""
        samples = list(self.samples.values())
        final = all(sample.finish_reason is not None for sample in samples)
        if final or (self._streaming and self._due(samples)):
            outermost = final or not self._begun
            self._begun = True
            self._sender.send(self._form.response(samples, self._outputs, outermost=outermost), final=final)
            for sample in samples:
                sample.clear()
        return final

    def _due(self, samples: Sequence[Sample]) -> bool:
        if not any(sample.text for sample in samples):
            return False
        return not self._begun or max(len(sample.token_ids) for sample in samples) >= self._interval

    def fail(self, message: str, code: str) -> None:
        """End with an error; `code` names one of `pb_utils.TritonError`'s."""
        self._sender.fail(message, code)

    def is_cancelled(self) -> bool:
        """Whether the client has cancelled or gone."""
        return self._sender.is_cancelled()


class Sender:
    """Triton's response sender of a request, used as it must be: nothing after the last response."""

    def __init__(self, request: Any) -> None:
        self.name = request.request_id() or "without an id"
        """What the log calls a request that could not be read."""
        self._sender = request.get_response_sender()
        self._lock = threading.Lock()
        self._closed = False
        self.parameters: dict[str, Any] = json.loads(request.parameters() or "{}")
        """What came with the request besides its inputs."""
        # Set by the model `completion`: between models Triton loses the code of an error, but not its text.
        self._spells_code = "code_in_error" in self.parameters

    def send(self, response: Any, *, final: bool) -> None:
        """Send a response, the last one if `final`."""
        with self._lock:
            self._closed = final
            self._sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0)

    def fail(self, message: str, code: str) -> None:
        """Send an error as the last response; `code` names one of `pb_utils.TritonError`'s."""
        message = _shortened(message)
        if self._spells_code:
            message = f"{code}: {message}"
        error = pb_utils.TritonError(message, getattr(pb_utils.TritonError, code))
        self.send(pb_utils.InferenceResponse(output_tensors=[], error=error), final=True)

    def close(self) -> None:
        """End without a response."""
        with self._lock:
            self._closed = True
            self._sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def is_cancelled(self) -> bool:
        """Whether the client has cancelled or gone. Never asked of Triton after the last response: it has freed the
        request by then."""
        with self._lock:
            return not self._closed and bool(self._sender.is_cancelled())


def _shortened(message: str) -> str:
    """Without the middle where it is too long, so that it still begins with the field and ends with the bound."""
    half = _LONGEST_MESSAGE // 2
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[:half]}...{message[-half:]}"


def _sample_params(params: SamplingParams, index: int) -> SamplingParams:
    """Samples of a seeded request differ by seeds of their own."""
    return params if params.seed is None else dataclasses.replace(params, seed=(params.seed + index) % 2**64)
