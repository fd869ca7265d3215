"""Draining: the server finishes what it has, and sends everything new elsewhere."""

import hmac
import os
import threading
from collections.abc import Mapping
from typing import Any

from inflight import InvalidRequest, QueueFull

OPERATOR_KEY = "OPERATOR_KEY"
MESSAGE = "the server is draining; send the request to another one"
"""Clients look for this message."""


class Drain:
    """Whether the model takes requests. Whoever knows the operator's key can end that; nothing begins it again."""

    def __init__(self) -> None:
        self._begun = threading.Event()

    @property
    def has_begun(self) -> bool:
        """Whether new requests are refused."""
        return self._begun.is_set()

    def begin(self, parameters: Mapping[str, Any]) -> None:
        """Begin to drain.

        Raises:
            InvalidRequest: the request's `operator_key` is not the server's, or the server has none.
        """
        key = os.environ.get(OPERATOR_KEY)
        if not key:
            raise InvalidRequest(f"drain needs an operator's key: set {OPERATOR_KEY} in the server's environment")
        if not hmac.compare_digest(str(parameters.get("operator_key")).encode(), key.encode()):
            raise InvalidRequest(f"operator_key is not the {OPERATOR_KEY} of the server")
        self._begun.set()

    def check(self) -> None:
        """Raise QueueFull if new requests are refused."""
        if self.has_begun:
            raise QueueFull(MESSAGE)
