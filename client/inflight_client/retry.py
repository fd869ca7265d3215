"""What is sent again after it failed, and when."""

import random
import time
from dataclasses import dataclass

from inflight_client.errors import DeadlineExceeded, InflightError, ModelNotReady, ServerOverloaded, TransportError
from inflight_client.options import Timeouts


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """When a request that failed before its first token is sent again: the server was too busy, not ready, or away.

    Waits double, each between half and all of its length by chance (AWS's "equal jitter"), so that the clients of a
    server that comes back don't return all at once. `RetryPolicy(attempts=1)` never tries again.

    Raises:
        ValueError: a bound makes no sense.
    """

    attempts: int = 4
    """Most times that a request is sent."""
    initial: float = 0.5
    """The first wait, in seconds."""
    longest: float = 10.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts is {self.attempts}; it must be at least 1")
        if not 0 < self.initial <= self.longest:
            raise ValueError(f"initial is {self.initial}; it must be over 0 and at most longest, {self.longest}")

    def wait_after(self, error: InflightError, attempt: int) -> float | None:
        """Seconds to wait after the `attempt`-th attempt (from 1) failed; None to give up."""
        if attempt >= self.attempts or not isinstance(error, ServerOverloaded | ModelNotReady | TransportError):
            return None
        full = min(self.longest, self.initial * 2 ** min(attempt - 1, 30))
        wait = random.uniform(full / 2, full)
        hint = error.retry_after if isinstance(error, ServerOverloaded) else None
        return wait if hint is None else max(wait, min(hint, self.longest))


class Attempts:
    """The attempts at one request, from its first on."""

    def __init__(self, policy: RetryPolicy, timeouts: Timeouts, *, stream: bool) -> None:
        self._policy, self._timeouts, self._stream = policy, timeouts, stream
        self._ends = time.monotonic() + timeouts.total
        self._count = 0
        self._failed: InflightError | None = None

    def next_bounds(self) -> tuple[float, float]:
        """Begin an attempt: seconds until its first response, and until its end."""
        self._count += 1
        left = max(0.001, self._ends - time.monotonic())
        return (min(self._timeouts.first_token, left) if self._stream else left), left

    def wait_after(self, error: InflightError) -> float:
        """Seconds to wait after an attempt has failed before its first token.

        Raises:
            InflightError: `error`, where there is to be no other attempt, or DeadlineExceeded, where there is no time.
        """
        if isinstance(error, DeadlineExceeded) and self._failed is not None:
            raise self._out_of_time(self._failed) from error
        wait = self._policy.wait_after(error, self._count)
        if wait is None:
            raise error
        if time.monotonic() + wait >= self._ends:
            raise self._out_of_time(error) from error
        self._failed = error
        return wait

    def _out_of_time(self, last: InflightError) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"no answer within {self._timeouts.total} s; the last error was {type(last).__name__}: {last}"
        )
