"""The requests that run."""

from collections.abc import Sequence

from inflight.kv_cache.block_tables import BlockTables
from inflight.request import Request
from inflight.scheduler.plan import ScheduledRequest
from inflight.scheduler.policies.policy import SchedulingPolicy
from inflight.scheduler.step_limit import StepLimit
from inflight.speculation.speculator import NoSpeculation

# Maximum number of tokens in a step that grammars force in addition to the sampled ones. They make the step longer.
_MAX_FORCED = 256


class RunningSet(dict[str, Request]):
    """The running requests by id, in order of admission. They have blocks. Each beam of a search is a request here."""

    def __init__(
        self,
        tables: BlockTables,
        policy: SchedulingPolicy,
        limit: StepLimit,
        speculator: NoSpeculation,
        *,
        has_levels: bool,
    ) -> None:
        """`has_levels`: the requests have priority levels."""
        super().__init__()
        self._tables = tables
        self._policy = policy
        self._limit = limit
        self._speculator = speculator
        self._has_levels = has_levels

    @property
    def free_slots(self) -> int:
        """How many more sequences may run. It is negative if more run than the newest limit allows."""
        return self._limit.sequences - len(self)

    def has(self, request: Request) -> bool:
        """Return whether this request object runs, and not another one with the same id."""
        return self.get(request.request_id) is request

    def join(self, request: Request, hit: Sequence[int]) -> None:
        """Add a request, which shares the blocks `hit`, and its beams. Raises what `BlockTables.admit` raises."""
        self._tables.admit(request, hit)
        self[request.request_id] = request
        if request.beams is not None:
            self.update((beam.request_id, beam) for beam in request.beams.join())

    def leave(self, request: Request) -> None:
        """Remove a request and its beams, and free what they hold. A preempted one may hold blocks in host memory."""
        for each in request.members:
            self.pop(each.request_id, None)
            self._tables.release(each)
            self._speculator.forget(each)

    def ranked(self, *, leftover: bool | None = None) -> list[Request]:
        """Return the requests by rank, then in order of admission. `leftover`: only those that are, or are not."""
        running = list(self.values())
        if self._policy.leftover is not None and leftover is not None:
            running = [request for request in running if request.is_leftover == leftover]
        elif self._policy.leftover is not None or self._policy.ranks_running or self._has_levels:
            running.sort(key=self._policy.rank)
        return running

    def decodes(self, *, leftover: bool) -> list[ScheduledRequest]:
        """Schedule the requests that lack only the tokens of their last step."""
        spare = min(max(0, self._limit.tokens - len(self)), _MAX_FORCED)
        return ScheduledRequest.decodes_of(self.ranked(leftover=leftover), spare)

    def unfinished(self, *, leftover: bool) -> list[Request]:
        """Return the requests that have prompts to compute, or tokens to compute again."""
        return [
            request
            for request in self.ranked(leftover=leftover)
            if len(request.token_ids) - request.num_computed > 1 and not request.decodes
        ]
