"""What is present when a step is planned."""

from collections.abc import Mapping
from functools import cached_property

from inflight.request import Request
from inflight.scheduler.waiting_queue import WaitingQueue


class Load:
    """The running and the waiting requests."""

    def __init__(self, running: Mapping[str, Request], waiting: WaitingQueue) -> None:
        self.running = running
        self.waiting = waiting

    @cached_property
    def prompts(self) -> list[int]:
        """How many tokens each running prompt still has to compute."""
        return [r.num_uncomputed for r in self.running.values() if r.num_uncomputed > 1 and not r.decodes]

    @property
    def prompt_tokens(self) -> int:
        """Tokens to compute before all present requests decode."""
        return self.waiting.num_tokens + sum(self.prompts)
