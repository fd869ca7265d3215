"""Whom the KV cache has room for: `batch_scheduler_policy`."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from inflight.kv_cache.block_tables import BlockTables
from inflight.request import Request
from inflight.scheduler.length_predictor import LengthPredictor


class Admission(ABC):
    """Decides whether a waiting request may join the running set."""

    preempts = True
    """Whether running requests may be preempted."""

    def __init__(self, tables: BlockTables) -> None:
        self.tables = tables

    @abstractmethod
    def allows(self, request: Request, hit: Sequence[int], running: Mapping[str, Request]) -> bool:
        """Whether a waiting request that would share the blocks `hit` may join."""


class MaxUtilization(Admission):
    """As soon as there are blocks for the tokens that a request has; when they run out, somebody is preempted.

    TensorRT-LLM's MAX_UTILIZATION, and what vLLM does.
    """

    def allows(self, request: Request, hit: Sequence[int], running: Mapping[str, Request]) -> bool:
        """Blocks for what is known now."""
        return self.tables.fresh_blocks(request, hit) <= self.tables.pool.num_free


class GuaranteedNoEvict(Admission):
    """Only if everybody who runs can go on to `max_tokens`: TensorRT-LLM's GUARANTEED_NO_EVICT."""

    preempts = False

    def allows(self, request: Request, hit: Sequence[int], running: Mapping[str, Request]) -> bool:
        """Blocks for the worst case, beside what those that run may still ask for."""
        tables = self.tables
        grows = tables.blocks_for(request.max_cached_tokens) - tables.blocks_for(len(request.token_ids))
        return tables.fresh_blocks(request, hit) + grows <= tables.pool.num_free - tables.num_promised


class FuturePeak(Admission):
    """If the most that the running set will ever hold fits, by predicted output lengths.

    The Past-Future scheduler (ASPLOS'25): requests end in the order of their remaining lengths, so the set is largest
    when one of them ends. Lengths are drawn from those of the past; preemption helps out where they were too short.
    """

    # Requests get lengths spread over what is known of lengths, each its own for good: multiples of the golden ratio
    # fill the range evenly. One quantile for all would reserve for many long outputs at once, which never come.
    _GOLDEN_RATIO = 0.6180339887498949

    def __init__(self, tables: BlockTables, lengths: LengthPredictor) -> None:
        super().__init__(tables)
        self._lengths = lengths

    def allows(self, request: Request, hit: Sequence[int], running: Mapping[str, Request]) -> bool:
        """Blocks for what is known now, and at the predicted peak."""
        if self.tables.fresh_blocks(request, hit) > self.tables.pool.num_free:
            return False
        return not running or self._peak([*running.values(), request]) <= self.tables.pool.num_blocks

    def _peak(self, requests: Sequence[Request]) -> int:
        """Blocks held when the set is largest; shared ones count for each, which is on the safe side."""
        ends = sorted(((self._remaining(r), len(r.token_ids)) for r in requests), reverse=True)
        peak = tokens = 0
        for count, (left, known) in enumerate(ends, start=1):
            tokens += known
            # Of each sequence's last block, half is empty on average.
            peak = max(peak, tokens + count * (left + self.tables.block_size // 2))
        return self.tables.blocks_for(peak)

    def _remaining(self, request: Request) -> int:
        return self._lengths.remaining(request, request.number * self._GOLDEN_RATIO % 1)
