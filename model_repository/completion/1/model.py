"""One whole answer per request: calls the decoupled model `llm` and waits for its end."""

from __future__ import annotations

import json
import locale
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

# The Python that Triton embeds starts with ASCII as its encoding, whatever the environment says.
locale.setlocale(locale.LC_CTYPE, "C.UTF-8")

ERROR_CODES = ["INVALID_ARG", "UNAVAILABLE", "CANCELLED", "NOT_FOUND", "UNSUPPORTED", "INTERNAL"]


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        threads = int(parameters["max_concurrent_requests"]["string_value"])
        queued = int(parameters["max_queued_requests"]["string_value"])
        self._places = threading.BoundedSemaphore(threads + queued)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="completion")

    def execute(self, requests: list[Any]) -> None:
        """Hand each request to a thread and return at once; the answers go out through their senders."""
        for request in requests:
            sender = request.get_response_sender()
            if self._places.acquire(blocking=False):
                self._pool.submit(self._answer, request, sender)
            else:
                _send(sender, _failure("too many requests are waiting", pb_utils.TritonError.UNAVAILABLE))

    def finalize(self) -> None:
        """Triton calls this when every request has had its answer."""
        self._pool.shutdown()

    def _answer(self, request: Any, sender: Any) -> None:
        try:
            if sender.is_cancelled():
                answer = _failure("cancelled before it began", pb_utils.TritonError.CANCELLED)
            else:
                answer = _complete(request)
            _send(sender, answer)
        finally:
            self._places.release()


def _complete(request: Any) -> Any:
    """Return the response to send; a fault of one request becomes its own error and no other's."""
    try:
        for response in _llm_request(request).exec(decoupled=True):
            if response.has_error():
                return _passed_on(response.error())
            # An empty response may follow the answer, to say that it was the last.
            if response.output_tensors():
                answer = pb_utils.InferenceResponse(response.output_tensors())
        return answer
    except Exception as error:  # noqa: BLE001
        return _failure(f"no answer from llm: {error!r}", pb_utils.TritonError.INTERNAL)


def _llm_request(request: Any) -> Any:
    parameters = json.loads(request.parameters())
    # Triton takes no floating point numbers here.
    passed_on = {key: repr(value) if isinstance(value, float) else value for key, value in parameters.items()}
    return pb_utils.InferenceRequest(
        model_name="llm",
        request_id=request.request_id(),
        inputs=[*request.inputs(), pb_utils.Tensor("stream", np.array([False]))],
        requested_output_names=list(request.requested_output_names()),
        parameters={**passed_on, "code_in_error": True},
        timeout=request.timeout(),
    )


def _passed_on(error: Any) -> Any:
    # Between models Triton 24.10 replaces every code by INTERNAL, so `llm` was asked to begin with the code.
    name, _, message = error.message().partition(": ")
    if name in ERROR_CODES:
        return _failure(message, getattr(pb_utils.TritonError, name))
    return _failure(error.message(), error.code())


def _failure(message: str, code: Any) -> Any:
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, code))


def _send(sender: Any, response: Any) -> None:
    sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
