"""How many requests may be refused at once."""

import time

_PER_SECOND = 50.0
_BURST = 100.0


class RefusalRate:
    """A token bucket. Refusing costs a millisecond of both processes, which others would have used.

    A client that sends one malformed request after the other, as fast as they are refused, took nearly half of the
    speed of 31 others on two processors. The refusals that are too many wait for the next sweep, a tenth of a second.
    """

    def __init__(self) -> None:
        self._left, self._at = _BURST, time.monotonic()

    def take(self) -> bool:
        """Return whether a request may be refused now."""
        now = time.monotonic()
        self._left = min(_BURST, self._left + _PER_SECOND * (now - self._at))
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
