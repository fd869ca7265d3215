"""What the scheduler promises for one step: the only thing that the runner sees of it."""

from dataclasses import dataclass

from inflight.request import Request
from inflight.scheduler.prefill_budget import PrefillBudget


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """One request's share of a step: its next `num_tokens` uncomputed tokens."""

    request: Request
    num_tokens: int

    @property
    def samples(self) -> bool:
        """The share reaches the last known token, so a new one is sampled after it."""
        return self.num_tokens == self.request.num_uncomputed


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The shares of a step, decodes (one token each) before prompt chunks."""

    scheduled: tuple[ScheduledRequest, ...]
    preempted: tuple[Request, ...] = ()
    """Requests that gave their blocks back and wait again."""
    swapped_out: tuple[tuple[int, int], ...] = ()
    """Copies to make before anything else: from this block to that host block."""
    swapped_in: tuple[tuple[int, int], ...] = ()
    """Copies to make after those: from this host block to that block."""
    num_cached: int = 0
    """Tokens computed before, whose keys and values the step reads."""
    padding: int = 0
    """Tokens that a padded batch would compute besides, where the batching strategy pads."""
    prefill_budget: PrefillBudget | None = None
    """Most prompt tokens that the step could have taken, and why."""

    @property
    def num_tokens(self) -> int:
        return sum(share.num_tokens for share in self.scheduled)

    @property
    def sampling(self) -> list[Request]:
        """Requests that get a new token from this step, in the order of their rows."""
        return [share.request for share in self.scheduled if share.samples]
