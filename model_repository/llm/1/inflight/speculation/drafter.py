"""The interface of drafters, which guess the next tokens of requests."""

from collections.abc import Sequence
from typing import Protocol

from inflight.request import Request


class Drafter(Protocol):
    """Guesses the next tokens of requests. The stepping thread alone calls it."""

    def outlook(self, request: Request) -> float:
        """Return the probability that the first token of a draft is right; 0 if there is no draft.

        Given that a token is right, the same is assumed of the next one.
        """

    def seconds_per_token(self, num_requests: int) -> float:
        """Return how long a drafted token takes to make, if so many requests get drafts in the same step."""

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> list[list[int]]:
        """Return a draft for each request, of at most so many tokens. The last `outlook` of each was over 0.

        A draft may be empty.
        """

    def observe(self, request: Request) -> None:
        """Called when a request has new tokens, before the next `outlook`."""

    def completed(self, request: Request) -> None:
        """Called when the output of a request is complete."""

    def forget(self, request: Request) -> None:
        """Called when a request has left the scheduler, however it ended."""
