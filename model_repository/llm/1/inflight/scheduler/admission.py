"""Admission policies (`batch_scheduler_policy`): whether the KV cache has room for another request."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from inflight.kv_cache.block_tables import BlockTables
from inflight.request import Request
from inflight.scheduler.arrival_forecast import ArrivalForecast
from inflight.scheduler.output_lengths.predictor import LengthPredictor


class Admission(ABC):
    """Decides whether a waiting request may join the running set."""

    preempts = True
    """Whether running requests may be preempted."""

    next_tokens = 8
    """For how many tokens of each running request `MaxUtilization` keeps blocks. In simulations, 8 halve the
    preemptions. More of them spare fewer tokens than they cost in steps with fewer requests."""

    def __init__(self, tables: BlockTables) -> None:
        self.tables = tables

    def begin_step(self, now: float) -> None:
        """Called before a step is planned."""

    def arrived(self, request: Request) -> None:
        """Called when a request arrives."""

    @abstractmethod
    def allows(self, request: Request, hit: Sequence[int], running: Mapping[str, Request]) -> bool:
        """Return whether a waiting request, which would share the blocks `hit`, may join."""


class MaxUtilization(Admission):
    """Admits a request as soon as there are blocks for its known tokens. When blocks run out, a request is preempted.

    TensorRT-LLM calls this MAX_UTILIZATION. vLLM does the same. The blocks that running requests need for their next
    tokens are left to them. Without such a watermark, the new request would soon be preempted again. With a forecast,
    so are the blocks for the prompts that will soon arrive and go before the new request.
    """

    def __init__(self, tables: BlockTables, forecast: ArrivalForecast | None = None) -> None:
        super().__init__(tables)
        self._forecast = forecast
        self._now = 0.0

    def begin_step(self, now: float) -> None:
        """Set the time that the forecast begins at."""
        self._now = now

    def arrived(self, request: Request) -> None:
        """Let the forecast learn."""
        if self._forecast is not None:
            self._forecast.arrived(request)

    def allows(self, request: Request, hit: Sequence[int], running: Mapping[str, Request]) -> bool:
        """Check the blocks for the known tokens, and for the next tokens of running and of expected requests."""
        spare = self.tables.pool.num_free - self.tables.fresh_blocks(request, hit)
        spare -= self._needed_before(request, running)
        return spare >= 0 and (spare >= self.tables.num_promised or spare >= self._needed_soon(running))

    def _needed_before(self, request: Request, running: Mapping[str, Request]) -> int:
        """Return the blocks for expected requests that would preempt this one. They preempt lower levels first."""
        if self._forecast is None or not running or any(r.priority > request.priority for r in running.values()):
            return 0
        return self.tables.blocks_for(math.ceil(self._forecast.tokens_before(request, self._now)))

    def _needed_soon(self, running: Mapping[str, Request]) -> int:
        ends = (min(len(r.token_ids) + self.next_tokens, r.max_cached_tokens) for r in running.values())
        return sum(map(self.tables.blocks_for, ends)) - sum(len(r.blocks) for r in running.values())


class GuaranteedNoEvict(Admission):
    """Admits a request only if it and all running requests can reach `max_tokens`.

    TensorRT-LLM calls this GUARANTEED_NO_EVICT.
    """

    preempts = False

    def allows(self, request: Request, hit: Sequence[int], running: Mapping[str, Request]) -> bool:
        """Check the blocks for the worst case, in addition to what running requests may still need."""
        tables = self.tables
        grows = tables.most_blocks(request) - tables.blocks_for(len(request.token_ids))
        return tables.fresh_blocks(request, hit) + grows <= tables.pool.num_free - tables.num_promised


class FuturePeak(Admission):
    """Admits a request if the peak memory of the running set fits, according to predicted output lengths.

    This is the Past-Future scheduler (ASPLOS'25). Requests end in the order of their remaining lengths, so memory use
    peaks when one of them ends. Output lengths are drawn from those of past requests. If they prove too short, requests
    are preempted.
    """

    # Each request keeps its own quantile of the past lengths. Multiples of the golden ratio spread these evenly.
    # The same quantile for all requests would reserve blocks for many long outputs at once, which never occur.
    _GOLDEN_RATIO = 0.6180339887498949

    def __init__(self, tables: BlockTables, lengths: LengthPredictor) -> None:
        super().__init__(tables)
        self._lengths = lengths

    def allows(self, request: Request, hit: Sequence[int], running: Mapping[str, Request]) -> bool:
        """Check the blocks for the known tokens and for the predicted peak."""
        if self.tables.fresh_blocks(request, hit) > self.tables.pool.num_free:
            return False
        return not running or self._peak([*running.values(), request]) <= self.tables.pool.num_blocks

    def _peak(self, requests: Sequence[Request]) -> int:
        """Return the blocks in use at the peak. A shared block counts once for each request, which is the safe side."""
        ends = sorted(((self._remaining(r), len(r.token_ids)) for r in requests), reverse=True)
        peak = tokens = 0
        for count, (left, known) in enumerate(ends, start=1):
            tokens += known
            # On average, half of the last block of each sequence is empty.
            peak = max(peak, tokens + count * (left + self.tables.block_size // 2))
        return self.tables.blocks_for(peak)

    def _remaining(self, request: Request) -> int:
        return self._lengths.remaining(request, request.number * self._GOLDEN_RATIO % 1)
