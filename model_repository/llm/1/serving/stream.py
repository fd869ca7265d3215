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

# gRPC sends error messages in headers. Its clients accept 8 KiB of headers, and one character can take 12 bytes there.
_LONGEST_MESSAGE = 600


class ResponseStream:
    """Sends the responses of one request. The responder thread and the maintenance thread can use it at once."""

    def __init__(self, sender: "Sender", parsed: ParsedRequest, form: ResponseFormat, *, interval: int) -> None:
        """`interval`: the number of tokens that one streamed response holds, except the first and the last response."""
        self._sender = sender
        self._interval, self._begun = interval, False
        self._form = form
        self._outputs = parsed.outputs
        self._streaming = parsed.stream
        self._options, self._arrival = parsed.options, time.monotonic()
        self.cancel_key = parsed.cancel_key
        """The key with which another request can cancel this one."""
        opening = [str(parsed.prompt)] if parsed.prepend_prompt else []
        # Not Triton's request id: clients choose it, so two requests can have the same one.
        run = uuid.uuid4().hex
        self.samples = {f"{run}-{i}": Sample(text=list(opening)) for i in range(parsed.num_samples)}
        """The samples, by the engine's request id of each."""
        self.unsubmitted = {
            request_id: _sample_params(parsed.params, i) for i, request_id in enumerate(self.samples) if i > 0
        }
        """Samples that wait until the prompt of the first sample is in the prefix cache, so that they share its
        blocks."""

    @property
    def name(self) -> str:
        """The name in the log and in `inflight top`: the client's request id, or else the engine's."""
        return self._options.client_request_id or self.first_id

    def summary(self) -> dict[str, object]:
        """The request's name, tenant, age in seconds and number of output tokens so far."""
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
        """The client's options, with the time since arrival subtracted from the time limits."""
        return self._options.after(time.monotonic() - self._arrival)

    def add(self, delta: Delta) -> None:
        """Add the new output of one sample; `flush` sends it."""
        self.samples[delta.request.request_id].add(delta)

    def flush(self) -> bool:
        """Send the new output if a response is due, and return whether it was the last.

        A streamed request gets a response for each piece of text, any other request one response at the end.
        """
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
        """End the request with an error; `code` is the name of a code of `pb_utils.TritonError`."""
        self._sender.fail(message, code)

    def is_cancelled(self) -> bool:
        """Whether the client has cancelled the request or disconnected."""
        return self._sender.is_cancelled()


class Sender:
    """Triton's response sender of one request. It must not be used after the last response."""

    def __init__(self, request: Any) -> None:
        self.name = request.request_id() or "without an id"
        """The name in the log of a request that could not be parsed."""
        self._sender = request.get_response_sender()
        self._lock = threading.Lock()
        self._closed = False
        self.parameters: dict[str, Any] = json.loads(request.parameters() or "{}")
        """The parameters of the request, which Triton sends in addition to the input tensors."""
        # The model `completion` sets this parameter: between models Triton passes on the text of an error, but not its
        # code.
        self._spells_code = "code_in_error" in self.parameters

    def send(self, response: Any, *, final: bool) -> None:
        """Send a response. `final`: it is the last one."""
        with self._lock:
            self._closed = final
            self._sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0)

    def fail(self, message: str, code: str) -> None:
        """Send an error as the last response; `code` is the name of a code of `pb_utils.TritonError`."""
        message = _shortened(message)
        if self._spells_code:
            message = f"{code}: {message}"
        error = pb_utils.TritonError(message, getattr(pb_utils.TritonError, code))
        self.send(pb_utils.InferenceResponse(output_tensors=[], error=error), final=True)

    def close(self) -> None:
        """End the request without a response."""
        with self._lock:
            self._closed = True
            self._sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def is_cancelled(self) -> bool:
        """Whether the client has cancelled the request or disconnected.

        False after the last response. Triton must not be asked then, because it has freed the request.
        """
        with self._lock:
            return not self._closed and bool(self._sender.is_cancelled())


def _shortened(message: str) -> str:
    """Cut out the middle of a message that is too long: the field is at its start, and the bound is at its end."""
    half = _LONGEST_MESSAGE // 2
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[:half]}...{message[-half:]}"


def _sample_params(params: SamplingParams, index: int) -> SamplingParams:
    """Return the parameters of one sample. In a request with a seed each sample has a seed of its own."""
    return params if params.seed is None else dataclasses.replace(params, seed=(params.seed + index) % 2**64)
