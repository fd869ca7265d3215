"""The only response of a request."""

import shutil
import threading
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from joined_rows import joined
from serving.sending import send

_SHARED_MEMORY = "/dev/shm"
# Triton's region begins with a free megabyte.
_SMALL_RESPONSE = 2**16


class Answer:
    """The only response of a request, sent when all rows are complete. An error of one row becomes its error."""

    def __init__(self, sender: Any, num_rows: int, *, batched: bool) -> None:
        self._sender = sender
        self._lock = threading.Lock()
        self._sent = False
        self._rows: dict[int, Any] = {}
        self._num_rows = num_rows
        self._batched = batched

    def is_cancelled(self) -> bool:
        """Whether the client has cancelled the request or disconnected.

        False after the response. Triton must not be asked then, because it has freed the request.
        """
        with self._lock:
            return not self._sent and bool(self._sender.is_cancelled())

    def put(self, index: int, row: Any) -> None:
        """Add the outputs of a row, or its error. The last row sends the response."""
        with self._lock:
            self._rows[index] = row
            if len(self._rows) == self._num_rows:
                self._sent = True
                send_answer(self._sender, self._response_or_fault())

    def _response_or_fault(self) -> Any:
        try:
            return self._response()
        except Exception as fault:  # noqa: BLE001 - otherwise the client would wait for ever
            message = f"rows that don't fit together: {fault!r}"
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, pb_utils.TritonError.INTERNAL))

    def _response(self) -> Any:
        rows = [self._rows[index] for index in range(self._num_rows)]
        error = next((row for row in rows if not isinstance(row, dict)), None)
        if error is not None:
            return pb_utils.InferenceResponse(error=error)
        outputs = joined(rows) if self._batched else rows[0]
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in outputs.items()])


def send_answer(sender: Any, response: Any) -> None:
    """Send a response, or the error that there is no room for it."""
    size = sum(_num_bytes(tensor.as_numpy()) for tensor in response.output_tensors())
    free = shutil.disk_usage(_SHARED_MEMORY).free
    if size > _SMALL_RESPONSE and 2 * size > free:
        # If Triton's sender finds no room, it has closed itself already, and the client would wait for ever.
        message = f"the answer has {size} bytes, and {_SHARED_MEMORY} has room for {free}; give it more (--shm-size)"
        response = pb_utils.InferenceResponse(error=pb_utils.TritonError(message, pb_utils.TritonError.INTERNAL))
    try:
        send(sender, response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    except pb_utils.TritonModelException as fault:
        pb_utils.Logger.log_error(f"an answer could not be sent: {fault}")


def _num_bytes(array: Any) -> int:
    """The size of a tensor as Triton writes it. Texts are written with their lengths."""
    return sum(len(text) + 4 for text in array.flat) if array.dtype == np.object_ else int(array.nbytes)
