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

OUTPUTS = ["text_output", "finish_reason"]


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
            _send(sender, _complete(request, sender))
        finally:
            self._places.release()


def _complete(request: Any, sender: Any) -> Any:
    """Return the response to send; a fault of one request becomes its own error and no other's."""
    if sender.is_cancelled():
        return _failure("cancelled before it began", pb_utils.TritonError.CANCELLED)
    try:
        return _whole_answer(_llm_request(request).exec(decoupled=True))
    except Exception as error:  # noqa: BLE001
        pb_utils.Logger.log_error(f"completion: {error!r}")
        return _failure(f"completion failed: {error}", pb_utils.TritonError.INTERNAL)


def _llm_request(request: Any) -> Any:
    whole = pb_utils.Tensor("stream", np.array([False]))
    return pb_utils.InferenceRequest(
        model_name="llm",
        request_id=request.request_id(),
        inputs=[*request.inputs(), whole],
        requested_output_names=OUTPUTS,
        parameters=json.loads(request.parameters()),
        timeout=request.timeout(),
    )


def _whole_answer(responses: Any) -> Any:
    for response in responses:
        if response.has_error():
            return _failure(response.error().message(), response.error().code())
        if response.output_tensors():
            answer = pb_utils.InferenceResponse(response.output_tensors())
    return answer


def _failure(message: str, code: int) -> Any:
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, code))


def _send(sender: Any, response: Any) -> None:
    sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
