"""Draining: the server finishes what it has, and sends everything new elsewhere."""

import hmac
import os
import time
from collections.abc import Mapping
from typing import Any

from inflight import InvalidRequest, QueueFull

OPERATOR_KEY = "OPERATOR_KEY"
MESSAGE = "the server is draining; send the request to another one"
"""Clients look for this message."""


# Load balancers that ask once a second notice the drain in this time. Errors of a stream are of no use to them: gRPC
# carries them in a response of status OK.
_NOTICE_SECONDS = 3.0


class Drain:
    """Whether the model takes requests. Whoever knows the operator's key can end that; nothing begins it again.

    First only the health checks fail. New requests are refused 3 seconds later, when load balancers know.
    """

    def __init__(self) -> None:
        self._begun: float | None = None

    @property
    def has_begun(self) -> bool:
        """Whether health checks fail."""
        return self._begun is not None

    @property
    def refuses(self) -> bool:
        """Whether new requests are refused."""
        return self._begun is not None and time.monotonic() >= self._begun + _NOTICE_SECONDS

    def begin(self, parameters: Mapping[str, Any]) -> None:
        """Begin to drain, if that has not begun.

        Raises:
            InvalidRequest: the request's `operator_key` is not the server's, or the server has none.
        """
        # Bytes: the variable need not be text.
        key = os.environb.get(OPERATOR_KEY.encode())
        if not key:
            raise InvalidRequest(f"drain needs an operator's key: set {OPERATOR_KEY} in the server's environment")
        if not hmac.compare_digest(str(parameters.get("operator_key")).encode(), key):
            raise InvalidRequest(f"operator_key is not the {OPERATOR_KEY} of the server")
        if self._begun is None:
            self._begun = time.monotonic()

    def check_new(self) -> None:
        """Raise QueueFull if new requests are refused."""
        if self.refuses:
            raise QueueFull(MESSAGE)
