"""Sends the responses of one Triton request through the memory that Triton's processes share."""

import json
import threading
from typing import Any

import triton_python_backend_utils as pb_utils

from serving.sending import send
from serving.shared_memory import free_bytes

# What Triton adds to a response's tensors, and what it needs for other requests at the same time.
_RESERVE = 2**20
# gRPC sends error messages in headers. Its clients accept 8 KiB of headers, and one character can take 12 bytes there.
_LONGEST_MESSAGE = 600


class Sender:
    """Triton's response sender of one request. It must not be used after the last response."""

    def __init__(self, request: Any) -> None:
        self.name = "without an id"
        """The name in the log of a request that could not be parsed."""
        self.parameters: dict[str, Any] = {}
        """The parameters of the request, which Triton sends in addition to the input tensors; see `read`."""
        self._request = request
        self._sender = request.get_response_sender()
        self._lock = threading.Lock()
        self._closed = False
        self._spells_code = False

    def read(self) -> None:
        """Read the request's name and parameters. Raises what a malformed one makes Triton raise."""
        self.name = self._request.request_id() or self.name
        self.parameters = json.loads(self._request.parameters() or "{}")
        # Clients that get no code of an error ask for it in the message: between models, and over HTTP and streams of
        # gRPC, Triton passes on only the text.
        self._spells_code = "code_in_error" in self.parameters
        del self._request  # Its input tensors occupy shared memory.

    def send(self, response: Any, *, final: bool) -> None:
        """Send a response. `final`: it is the last one.

        If this raises anything, nothing was sent, and another response may follow.

        Triton's sender closes itself before it writes the last response to shared memory. If there is no room for it,
        the request can never end. So where room is scarce, the end is sent separately, after the response. It is not
        the rule: a client that cancels between the two can crash Triton 24.10.
        """
        with self._lock:
            if final and _has_room(response):
                self._end(response)
            else:
                send(self._sender, response)
                if final:
                    self._end()

    def _end(self, response: Any = None) -> None:
        self._closed = True
        flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        if response is None:
            self._sender.send(flags=flags)
        else:
            send(self._sender, response, flags)

    def fail(self, message: str, code: str) -> None:
        """Send an error as the last response. Raises as `send` does.

        `code` is the name of a code of `pb_utils.TritonError`, or DEADLINE_EXCEEDED. Triton lacks that code; it answers
        UNAVAILABLE to its own timeouts.
        """
        message = _shortened(message)
        if self._spells_code:
            message = f"{code}: {message}"
        code = "UNAVAILABLE" if code == "DEADLINE_EXCEEDED" else code
        error = pb_utils.TritonError(message, getattr(pb_utils.TritonError, code))
        self.send(pb_utils.InferenceResponse(output_tensors=[], error=error), final=True)

    def close(self) -> None:
        """End the request without a response."""
        with self._lock:
            self._end()

    @property
    def is_closed(self) -> bool:
        """Whether the last response has been sent, or was lost on its way. Nothing more can be sent."""
        return self._closed

    def is_cancelled(self) -> bool:
        """Whether the client has cancelled the request or disconnected.

        False after the last response. Triton must not be asked then, because it has freed the request.
        """
        with self._lock:
            return not self._closed and bool(self._sender.is_cancelled())


def _has_room(response: Any) -> bool:
    """Return whether a response certainly fits into shared memory, which Triton's region can grow into."""
    size = sum(_num_bytes(tensor.as_numpy()) for tensor in response.output_tensors())
    return free_bytes() > 2 * size + _RESERVE


def _num_bytes(array: Any) -> int:
    """The size of a tensor as Triton writes it. Texts are written with their lengths."""
    return sum(len(text) + 4 for text in array.flat) if array.dtype == object else int(array.nbytes)


def _shortened(message: str) -> str:
    """Cut out the middle of a message that is too long: the field is at its start, and the bound is at its end."""
    half = _LONGEST_MESSAGE // 2
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[:half]}...{message[-half:]}"
