"""When a failed request is sent again."""

import random
import time
from dataclasses import dataclass

from inflight_client.errors import DeadlineExceeded, InflightError, ModelNotReady, ServerOverloaded, TransportError
from inflight_client.options import TimeLimits, Timeouts
from inflight_client.request import Request


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Sends a request again if it failed before its first token because the server was busy, not ready or unreachable.

    The wait doubles after each attempt (exponential backoff). Each wait is random between half and all of its length
    (AWS's "equal jitter"), so that clients do not all return at once when a server comes back.
    `RetryPolicy(attempts=1)` never sends a request again.

    Raises:
        ValueError: a value is out of its bounds.
    """

    attempts: int = 4
    """Maximum number of times that a request is sent."""
    initial: float = 0.5
    """The first wait, in seconds."""
    longest: float = 10.0
    """The maximum wait, in seconds."""

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts is {self.attempts}; it must be at least 1")
        if not 0 < self.initial <= self.longest:
            raise ValueError(f"initial is {self.initial}; it must be over 0 and at most longest, {self.longest}")

    def wait_after(self, error: InflightError, attempt: int) -> float | None:
        """Seconds to wait after attempt number `attempt` (from 1) has failed. None: do not try again."""
        if attempt >= self.attempts or not isinstance(error, ServerOverloaded | ModelNotReady | TransportError):
            return None
        full = min(self.longest, self.initial * 2 ** min(attempt - 1, 30))
        wait = random.uniform(full / 2, full)
        hint = error.retry_after if isinstance(error, ServerOverloaded) else None
        return wait if hint is None else max(wait, min(hint, self.longest))


class Attempts:
    """The attempts of one request, and the time that is left for it."""

    def __init__(self, policy: RetryPolicy, timeouts: Timeouts, request: Request) -> None:
        self._policy, self._timeouts, self._request = policy, timeouts, request
        self._started = time.monotonic()
        self._seconds = min(timeouts.total, request.seconds)
        self._count = 0
        self._failed: InflightError | None = None

    def next(self) -> tuple[Request, TimeLimits]:
        """Begin an attempt. Return the request with the time limits that are left of its own, and those of the attempt.

        The server ends a request at its own limit. The client waits until `total` for the answer so far.
        """
        self._count += 1
        # The first attempt has all of the time, so that the server's messages show the caller's own numbers.
        passed = time.monotonic() - self._started if self._count > 1 else 0.0
        left = max(0.001, self._timeouts.total - passed)
        first = min(self._timeouts.first_token, left) if self._request.stream else left
        return self._request.after(passed), TimeLimits(first, self._timeouts.between_tokens, left)

    def wait_after(self, error: InflightError) -> float:
        """Seconds to wait after an attempt has failed before its first token.

        Raises:
            InflightError: `error` if there is no further attempt, DeadlineExceeded if there is no time for one.
        """
        if isinstance(error, DeadlineExceeded) and self._failed is not None:
            raise self._out_of_time(self._failed) from error
        wait = self._policy.wait_after(error, self._count)
        if wait is None:
            raise error
        if time.monotonic() + wait >= self._started + self._seconds:
            raise self._out_of_time(error) from error
        self._failed = error
        return wait

    def _out_of_time(self, last: InflightError) -> DeadlineExceeded:
        return DeadlineExceeded(f"no answer within {self._seconds} s; the last error was {type(last).__name__}: {last}")
