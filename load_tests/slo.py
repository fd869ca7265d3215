"""What users want of a server."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Slo:
    """Service level objective: a request is good if its first token and its tokens come in time.

    The time between tokens is its mean over a request, as in DistServe (OSDI'24), where it is called TPOT.
    """

    ttft: float
    """Seconds; a request's own target takes its place."""
    itl: float
    """Seconds."""
