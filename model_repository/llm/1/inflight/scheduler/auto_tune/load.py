"""What is present when a step is planned."""

from collections.abc import Mapping
from functools import cached_property

from inflight.request import Request


class Load:
    """The running and the waiting requests."""

    def __init__(
        self, running: Mapping[str, Request], first: Request | None, num_waiting: int, waiting_tokens: int
    ) -> None:
        """`first` is the next request in the queue. All waiting requests together have `waiting_tokens` tokens."""
        self.running = running
        self.first = first
        self.num_waiting = num_waiting
        self._waiting_tokens = waiting_tokens

    @cached_property
    def prompts(self) -> list[int]:
        """How many tokens each running prompt still has to compute."""
        return [r.num_uncomputed for r in self.running.values() if r.num_uncomputed > 1 and not r.decodes]

    @property
    def prompt_tokens(self) -> int:
        """Tokens to compute before all present requests decode."""
        return self._waiting_tokens + sum(self.prompts)
