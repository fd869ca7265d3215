"""Ends requests with errors."""

import logging
from collections import deque

from inflight import EngineDead, InvalidRequest, QueueFull
from inflight.request import EXPIRED, SHED
from serving.metrics_export import Refusals
from serving.refusal_rate import RefusalRate
from serving.sender import Sender

logger = logging.getLogger(__name__)

CODES_OF_LATE = {EXPIRED: "DEADLINE_EXCEEDED", SHED: "UNAVAILABLE"}
"""By the reason for which a request ended before its first token."""
ENGINE_DEAD_CODE = "UNAVAILABLE"
"""Of what a dead engine refuses: another server can do it. What ran ends with INTERNAL, as it may be the cause."""
# The code, and the reason in the metrics.
_REFUSALS: dict[type[Exception], tuple[str, str]] = {
    InvalidRequest: ("INVALID_ARG", "invalid"),
    QueueFull: ("UNAVAILABLE", "overload"),
    EngineDead: (ENGINE_DEAD_CODE, "error"),
}


class Failures:
    """Sends errors. Any thread may use it."""

    def __init__(self) -> None:
        self.refusals = Refusals()
        self._rate = RefusalRate()
        self._unsent: deque[tuple[Sender, str, str]] = deque()
        """Requests with the message and the code of an error that the next sweep sends: there was no room for it in
        shared memory, or too many are refused at once."""

    def refuse(self, sender: Sender, error: Exception) -> None:
        """Answer a request that never ran with the matching error."""
        known = next((known for kind, known in _REFUSALS.items() if isinstance(error, kind)), None)
        if known is None:
            logger.error("request %s failed because of an internal error", sender.name, exc_info=error)
        code, reason = known or ("INTERNAL", "error")
        self.refusals.add(reason)
        message = str(error) if known else f"{type(error).__name__}: {error}"
        if code == "INVALID_ARG" and not self._rate.take():
            self._unsent.append((sender, message, code))
        else:
            self.fail(sender, message, code)

    def fail(self, sender: Sender, message: str, code: str) -> None:
        """End a request with an error. If that cannot be sent now, `send_waiting` tries again."""
        try:
            sender.fail(message, code)
        except Exception:
            logger.exception("the error of request %s could not be sent", sender.name)
            self._unsent.append((sender, message, code))

    def send_waiting(self) -> None:
        """Send the errors that wait. Raises as `Sender.send` does; those that are left wait for the next call."""
        for _ in range(len(self._unsent)):
            sender, message, code = self._unsent.popleft()
            try:
                if not sender.is_closed:
                    sender.fail(message, code)
            except Exception:
                self._unsent.append((sender, message, code))
                raise
