"""The users' objective for latencies."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Slo:
    """Service level objective: a request meets it if its first token and the following tokens arrive in time.

    The time between tokens is the mean over a request, as in DistServe (OSDI'24), where it is called TPOT.
    """

    ttft: float
    """In seconds. A request's own target replaces it."""
    itl: float
    """Seconds."""
