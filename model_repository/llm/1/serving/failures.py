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
"""By the reason for which a request ended before its first step."""
_CODES: dict[type[Exception], str] = {InvalidRequest: "INVALID_ARG", QueueFull: "UNAVAILABLE", EngineDead: "INTERNAL"}
_REFUSALS = {"INVALID_ARG": "invalid", "UNAVAILABLE": "overload", "INTERNAL": "error"}


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
        code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), None)
        if code is None:
            logger.error("request %s failed because of an internal error", sender.name, exc_info=error)
        self.refusals.add(_REFUSALS[code or "INTERNAL"])
        message = str(error) if code else f"{type(error).__name__}: {error}"
        if code == "INVALID_ARG" and not self._rate.take():
            self._unsent.append((sender, message, code))
        else:
            self.fail(sender, message, code or "INTERNAL")

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
