"""What a committed step brought to a request."""

from collections.abc import Sequence
from typing import NamedTuple

from inflight.request import Request


class Committed(NamedTuple):
    """A request that sampled in a step, and what it got."""

    request: Request
    token_ids: Sequence[int]
    """The new tokens that belong to its output."""
    finish_reason: str | None
    """None while it goes on."""
