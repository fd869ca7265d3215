"""Waiting for what another process will have done soon."""

import time
from collections.abc import Callable


def eventually(condition: Callable[[], bool], seconds: float = 30) -> bool:
    """Whether something becomes true in time. Only a test that fails waits for all of it."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
