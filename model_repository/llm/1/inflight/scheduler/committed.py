"""The result of a committed step for one request."""

from collections.abc import Sequence
from typing import NamedTuple

from inflight.request import Request


class Committed(NamedTuple):
    """A request that got an answer in a step, with its new tokens."""

    request: Request
    token_ids: Sequence[int]
    """The new tokens that belong to the output of the request."""
    finish_reason: str | None
    """None if the request goes on."""
    num_forced: int = 0
    """How many of the new tokens a grammar forced."""
    num_accepted: int = 0
    """How many of the new tokens were drafted."""

    @property
    def num_generated(self) -> int:
        """How many tokens the step generated: also those of beams, which the output may not contain."""
        return len(self.token_ids) if self.request.beams is None else 1
