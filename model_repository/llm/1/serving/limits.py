"""How long a request may take, and whose turn it is."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from inflight import InvalidRequest
from serving import values

MAX_TENANT_CHARACTERS = 256


def tenant(name: str, value: Any) -> str:
    """Reads the name of a tenant."""
    text = values.text(name, value)
    if not 1 <= len(text) <= MAX_TENANT_CHARACTERS:
        raise InvalidRequest(
            f"{name} has {len(text)} characters; it must have at least 1 and at most {MAX_TENANT_CHARACTERS}"
        )
    return text


@dataclass(frozen=True)
class Limits:
    """What a client says of a request's place in the queue and of its time."""

    priority: int = 0
    """Level in the queue from 1, the highest; 0: the default one."""
    tenant: str = ""
    """Whose share of the server the request is charged to; empty: everyone's."""
    timeout_us: int = 0
    """Microseconds; 0: none. Heeded where the queue policy allows it."""
    deadline_ms: int | None = None
    """Milliseconds; None: none."""
    target_ttft_ms: int | None = None
    """Milliseconds within which the first token is wanted; None: as the scheduler is configured."""

    def after(self, seconds: float) -> "Limits":
        """What is left when so much time has passed: at least a moment, so that whoever is late finds its time up."""
        timeout_us, deadline_ms = self.timeout_us, self.deadline_ms
        if timeout_us > 0:
            timeout_us = max(1, timeout_us - int(seconds * 1e6))
        if deadline_ms is not None:
            deadline_ms = max(1, deadline_ms - int(seconds * 1e3))
        return dataclasses.replace(self, timeout_us=timeout_us, deadline_ms=deadline_ms)
