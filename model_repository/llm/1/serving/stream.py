"""One client's response stream."""

import json
import threading
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class ResponseStream:
    """Sends one request's responses; safe to use from the threads that send and the one that looks for cancellation."""

    def __init__(self, request: Any, *, streaming: bool, opening: str) -> None:
        self._sender = request.get_response_sender()
        self._lock = threading.Lock()
        self._closed = False
        self._streaming = streaming
        # Set by the model `completion`: between models Triton loses the code of an error, but not its text.
        self._spells_code = "code_in_error" in json.loads(request.parameters() or "{}")
        self._unsent = [opening] if opening else []
        """Text that awaits the next response."""

    def show(self, text: str, finish_reason: str | None) -> None:
        """Add text to the output: sent at once when streaming, at the end when not."""
        if text:
            self._unsent.append(text)
        final = finish_reason is not None
        if final or (self._streaming and self._unsent):
            self._send(_response("".join(self._unsent), finish_reason), final=final)
            self._unsent.clear()

    def fail(self, message: str, code: str) -> None:
        """End with an error; `code` names one of `pb_utils.TritonError`'s."""
        if self._spells_code:
            message = f"{code}: {message}"
        error = pb_utils.TritonError(message, getattr(pb_utils.TritonError, code))
        self._send(pb_utils.InferenceResponse(output_tensors=[], error=error), final=True)

    def _send(self, response: Any, *, final: bool) -> None:
        with self._lock:
            self._closed = final
            self._sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0)

    def is_cancelled(self) -> bool:
        """Whether the client has cancelled or gone. Never asked of Triton after the last response: it has freed the
        request by then."""
        with self._lock:
            return not self._closed and bool(self._sender.is_cancelled())


def _response(text: str, finish_reason: str | None) -> Any:
    return pb_utils.InferenceResponse(
        output_tensors=[
            pb_utils.Tensor("text_output", np.array([text.encode()], dtype=np.object_)),
            # vllm_backend says "None" until the last response.
            pb_utils.Tensor("finish_reason", np.array([str(finish_reason).encode()], dtype=np.object_)),
        ]
    )
