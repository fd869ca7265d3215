"""Decodes without the cost of launching kernels one by one, by CUDA graphs.

A step in which every request decodes launches the same kernels as the one before, on as many rows. Recorded once for
some numbers of rows, it is one launch; a batch in between runs on the next larger recording, its missing rows being
copies of its first one, which write what that one writes, where it does.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from inflight.model.attention.interface import use_attention
from inflight.model.cache.kv_tensors import LayerCache
from inflight.model.cuda.kernel_attention import BatchTensors, KernelAttention, parts_for
from inflight.model.forward import EagerForward, forward
from inflight.model.ragged_batch import RaggedBatch

logger = logging.getLogger(__name__)

# Above so many rows a step computes for longer than it takes to launch.
_MAX_ROWS = 256

Record: TypeAlias = Callable[[Callable[[], torch.Tensor]], tuple[torch.Tensor, Callable[[], object]]]
"""Runs a step, and returns what it gave and how to run it again, into the same memory."""


class CudaGraphs:
    """Records steps as CUDA graphs, which share their memory: record the largest first."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Callable[[], object]]:
        """See `Record`."""
        # Kernels are compiled, and libraries take their workspaces, where nothing is recorded.
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            step()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = step()
        return output, graph.replay


@dataclass(frozen=True)
class _Recording:
    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    block_tables: torch.Tensor
    logits: torch.Tensor
    replay: Callable[[], object]

    def run(self, batch: RaggedBatch) -> torch.Tensor:
        """Logits [rows of the recording, vocabulary]; those after the batch's mean nothing."""
        rows, width = batch.block_tables.shape
        for mine, theirs in (
            (self.token_ids, batch.token_ids),
            (self.positions, batch.positions),
            (self.slots, batch.slots),
            (self.block_tables[:, :width], batch.block_tables),
        ):
            mine[:rows] = theirs
            mine[rows:] = theirs[0]
        self.replay()
        return self.logits


class GraphedForward:
    """The model's own code, recorded where all rows decode; `prepare` records."""

    def __init__(self, eager: EagerForward, record: Record) -> None:
        self._eager, self._record = eager, record
        self._recordings: dict[int, _Recording] = {}
        """By their number of rows, the smallest first."""

    def prepare(self, caches: Sequence[LayerCache], max_rows: int, max_blocks: int) -> None:
        """Record steps of up to `max_rows` rows with up to `max_blocks` blocks each; writes into block 0."""
        try:
            with torch.inference_mode():
                largest_first = [self._recorded(rows, caches, max_blocks) for rows in reversed(sizes(max_rows))]
        except RuntimeError as error:
            name = type(self._eager.module).__name__
            logger.warning("the decodes of %s cannot be recorded and are launched one by one: %s", name, error)
            return
        self._recordings = {len(recording.token_ids): recording for recording in reversed(largest_first)}

    def __call__(self, batch: RaggedBatch, caches: Sequence[LayerCache], rows: torch.Tensor) -> torch.Tensor:
        """See `ForwardPass`; `caches` are those of `prepare`."""
        if batch.num_single == batch.num_rows:
            for size, recording in self._recordings.items():
                if size >= batch.num_rows:
                    return recording.run(batch)[rows]
        return self._eager(batch, caches, rows)

    def _recorded(self, rows: int, caches: Sequence[LayerCache], max_blocks: int) -> _Recording:
        device, block_size = caches[0].keys.device, caches[0].keys.shape[1]
        token_ids, positions, slots = torch.zeros(3, rows, dtype=torch.int64, device=device)
        block_tables = torch.zeros(rows, max_blocks, dtype=torch.int64, device=device)
        every, ones = torch.arange(rows, device=device), torch.ones(rows, dtype=torch.int64, device=device)
        no_prompts = torch.empty(0, 4, dtype=torch.int64, device=device)
        parts = parts_for(max_blocks * block_size, rows)

        def step() -> torch.Tensor:
            tiles = torch.stack((every, every, ones, positions), dim=1)
            batch = BatchTensors(slots, block_tables, tiles, no_prompts, parts)
            with use_attention(KernelAttention(batch, caches, self._eager.windows)):
                return forward(self._eager.module, token_ids, positions, every)

        logits, replay = self._record(step)
        return _Recording(token_ids, positions, slots, block_tables, logits, replay)


def sizes(max_rows: int) -> list[int]:
    """The numbers of rows that are recorded: 1, 2, 4, then by eights."""
    largest = min(max_rows, _MAX_ROWS)
    return sorted({size for size in (1, 2, 4, *range(8, largest, 8), largest) if size <= largest})
