"""What the scheduler decides for one step. All that runs, counts or draws the step works from the plan alone."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inflight.request import Request
from inflight.scheduler.prefill_budget import PrefillBudget


class Want(Enum):
    """What a request is to get at the end of its share of a step."""

    NOTHING = auto()
    """More of its tokens are to be computed first."""
    TOKEN = auto()
    """A new token, after the last known one."""


class ScheduledRequest(NamedTuple):
    """One request's share of a step, fixed when it is planned."""

    request: Request
    """Whose share it is. Of the request itself a step reads only what never changes, such as its parameters."""
    first: int
    """Position of the share's first token in the sequence: so many tokens are computed already."""
    token_ids: list[int]
    """The tokens to compute, in the order of the sequence."""
    want: Want
    begins: bool
    """Nothing of the request has been computed before."""
    last_token_at: float | None
    """When the request got its newest token, on the clock of `Request.arrival`; None before the first one."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def end(self) -> int:
        """Position after the share's last token."""
        return self.first + len(self.token_ids)

    @property
    def samples(self) -> bool:
        """Whether the request gets a new token."""
        return self.want is Want.TOKEN

    @classmethod
    def next_of(cls, request: Request, num_tokens: int) -> "ScheduledRequest":
        """A request's next `num_tokens` uncomputed tokens; it samples if these are all that are known."""
        first, known = request.num_computed, request.token_ids
        end = first + num_tokens
        want = Want.TOKEN if end == len(known) else Want.NOTHING
        return cls(request, first, known[first:end], want, not request.has_run, request.last_token_at)

    @classmethod
    def decodes_of(cls, requests: Iterable[Request]) -> list["ScheduledRequest"]:
        """`next_of` with one token for those requests that have one uncomputed token."""
        return [
            cls(r, r.num_computed, r.token_ids[-1:], Want.TOKEN, not r.has_run, r.last_token_at)
            for r in requests
            if r.num_computed + 1 == len(r.token_ids)
        ]


@dataclass(frozen=True)
class StepPlan:
    """The shares of a step, decodes (one token each) before prompt chunks. R shares."""

    scheduled: tuple[ScheduledRequest, ...]
    block_tables: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    """[R, blocks]: where keys and values of each share's sequence are, see `BlockTables.gather`."""
    preempted: tuple[Request, ...] = ()
    """Requests that gave their blocks back and wait again."""
    swapped_out: tuple[tuple[int, int], ...] = ()
    """Copies to make before anything else: from this block to that host block."""
    swapped_in: tuple[tuple[int, int], ...] = ()
    """Copies to make after those: from this host block to that block."""
    padding: int = 0
    """Tokens that a padded batch would compute besides, where the batching strategy pads."""
    prefill_budget: PrefillBudget | None = None
    """Most prompt tokens that the step could have taken, and why."""

    @cached_property
    def num_tokens(self) -> int:
        """Tokens to compute."""
        return sum([len(share.token_ids) for share in self.scheduled])

    @cached_property
    def num_cached(self) -> int:
        """Tokens computed before, whose keys and values the step reads."""
        return sum([share.first for share in self.scheduled])

    @cached_property
    def sampling(self) -> list[ScheduledRequest]:
        """The shares that end with a new token; a step gives a result for each, in this order."""
        return [share for share in self.scheduled if share.want is Want.TOKEN]
