"""The scheduler's plan for one step. The code that runs, counts or traces the step reads only the plan."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inflight.kv_cache.planned_copies import Imports
from inflight.kv_cache.recurrent_states import StatePlan
from inflight.request import Request
from inflight.scheduler.auto_tune.change import Change
from inflight.scheduler.prefill_budget import PrefillBudget
from inflight.scheduler.step_time import attention_pairs


class Want(Enum):
    """What a request gets at the end of a step."""

    NOTHING = auto()
    """No token: more of the request's tokens must be computed first."""
    TOKEN = auto()
    """A new token, after the last known one. If prompt tokens are read in this step, also what they say."""
    READING = auto()
    """No token, only what the prompt tokens say that are read in this step. They may be none at the request's end."""


class ScheduledRequest(NamedTuple):
    """The scheduled tokens of one request in a step. They are fixed when the step is planned."""

    request: Request
    """A step reads only the constant fields of the request, such as its parameters."""
    first: int
    """Position of the first scheduled token in the sequence. It is also the number of tokens already computed."""
    token_ids: list[int]
    """The tokens to compute, in sequence order: known ones, and then drafted ones."""
    want: Want
    begins: bool
    """Whether this is the first step of the request."""
    last_token_at: float | None
    """When the request got its newest token, on the clock of `Request.arrival`; None before the first one."""
    read: range = range(0)
    """Positions of the scheduled prompt tokens whose log-probabilities or hidden states are read."""
    num_draft: int = 0
    """How many of the tokens are drafted: guesses of what follows the known ones. The model may confirm them."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def end(self) -> int:
        """Position after the last scheduled token."""
        return self.first + len(self.token_ids)

    @property
    def num_pairs(self) -> int:
        """Pairs of a query and a key in attention."""
        return attention_pairs(self.first, len(self.token_ids))

    @property
    def known_end(self) -> int:
        """Position after the last scheduled token that is known."""
        return self.end - self.num_draft

    @property
    def is_final_chunk(self) -> bool:
        """Whether these are the last known tokens to compute. Only true until the step brings new ones."""
        return self.end == len(self.request.token_ids)

    @property
    def draft(self) -> list[int]:
        """The drafted tokens, at the positions from `known_end` on."""
        return self.token_ids[len(self.token_ids) - self.num_draft :]

    @property
    def num_rows(self) -> int:
        """How many positions are sampled, if it samples: the last known one, and those of the draft."""
        return 1 + self.num_draft

    def with_draft(self, draft: Sequence[int]) -> "ScheduledRequest":
        """Return the same request with a draft after its known tokens, all of which must be scheduled."""
        return self._replace(token_ids=[*self.token_ids, *draft], num_draft=len(draft))

    @property
    def samples(self) -> bool:
        """Whether the request gets a new token."""
        return self.want is Want.TOKEN

    @classmethod
    def next_of(cls, request: Request, num_tokens: int) -> "ScheduledRequest":
        """Schedule the next `num_tokens` uncomputed tokens of a request.

        It samples if no known tokens remain and it generates any.
        """
        first, known = request.num_computed, request.token_ids
        end = first + num_tokens
        read = request.to_read(first, end)
        want = Want.READING if read else Want.NOTHING
        if end == len(known):
            want = Want.TOKEN if request.max_tokens else Want.READING
        return cls(request, first, known[first:end], want, not request.has_run, request.last_token_at, read)

    @classmethod
    def decodes_of(cls, requests: Sequence[Request], spare: int) -> list["ScheduledRequest"]:
        """Schedule the requests that lack only the tokens of their last step.

        Each has one such token, and possibly others that a grammar forced to follow it. For those, the step has `spare`
        tokens. What does not fit waits for the next step.
        """
        decodes = [
            cls(r, r.num_computed, r.token_ids[-1:], Want.TOKEN, not r.has_run, r.last_token_at)
            if r.max_tokens
            else cls.next_of(r, 1)
            for r in requests
            if r.num_computed + 1 == len(r.token_ids)
        ]
        if len(decodes) < len(requests):
            for request in requests:
                if request.num_uncomputed > 1 and request.decodes:
                    tokens = min(request.num_uncomputed, 1 + spare)
                    spare -= tokens - 1
                    decodes.append(cls.next_of(request, tokens))
        return decodes


@dataclass(frozen=True)
class StepPlan:
    """The R scheduled requests of a step: decodes before prompt chunks."""

    scheduled: tuple[ScheduledRequest, ...]
    block_tables: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    """[R, blocks]: the blocks with the keys and values of each request, see `BlockTables.gather`."""
    preempted: tuple[Request, ...] = ()
    """Requests that lost their blocks and wait again."""
    swapped_out: tuple[tuple[int, int], ...] = ()
    """Copies to make before anything else: (block, host block)."""
    forked: tuple[tuple[int, int], ...] = ()
    """Copies to make after `swapped_out`: (block, block)."""
    swapped_in: tuple[tuple[int, int], ...] = ()
    """Copies to make after `forked`: (host block, block)."""
    imported: Imports = ()
    """Bytes to write into blocks after all copies."""
    states: StatePlan | None = None
    """What to do with recurrent states. None if the model has none."""
    padding: int = 0
    """Additional tokens that a padded batch would compute, if the batching strategy pads."""
    prefill_budget: PrefillBudget | None = None
    """Maximum number of prompt tokens that the step could have had, and the setting that determined it."""
    shows_states: bool = False
    """Whether the step is to return the hidden states of prompts' last tokens."""
    changes: tuple[Change, ...] = ()
    """Settings that were tuned before the step."""

    @cached_property
    def num_tokens(self) -> int:
        """Tokens to compute."""
        return sum([len(scheduled.token_ids) for scheduled in self.scheduled])

    @cached_property
    def num_cached(self) -> int:
        """Tokens computed before, whose keys and values the step reads."""
        return sum([scheduled.first for scheduled in self.scheduled])

    @property
    def can_be_halved(self) -> bool:
        """Whether the same requests could advance by smaller steps."""
        beams = max(Counter(scheduled.request.leader for scheduled in self.scheduled).values())
        first, *others = self.scheduled
        if others or first.request.images is None:
            return self.num_tokens > beams
        return first.end > first.request.images.next_end(first.first)

    @cached_property
    def num_pairs(self) -> int:
        """Pairs of a query and a key in attention."""
        return sum([scheduled.num_pairs for scheduled in self.scheduled])

    @cached_property
    def sampling(self) -> list[ScheduledRequest]:
        """The scheduled requests that get new tokens. Each has `num_rows` rows of the S that are sampled."""
        return [scheduled for scheduled in self.scheduled if scheduled.want is Want.TOKEN]

    @cached_property
    def num_draft(self) -> int:
        """Drafted tokens to compute."""
        return sum([scheduled.num_draft for scheduled in self.scheduled])

    @cached_property
    def reading(self) -> list[ScheduledRequest]:
        """The scheduled requests whose prompt tokens are read."""
        return [scheduled for scheduled in self.scheduled if scheduled.read]

    @cached_property
    def answered(self) -> list[ScheduledRequest]:
        """The scheduled requests that want something. A step returns one result for each, in this order."""
        return [scheduled for scheduled in self.scheduled if scheduled.want is not Want.NOTHING]
