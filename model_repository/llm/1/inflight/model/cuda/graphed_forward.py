"""Runs decodes as captured CUDA graphs, which saves the cost of launching kernels one by one.

A step in which every request decodes launches the same kernels as the step before, on the same number of rows. Such a
step is captured once for each of some numbers of rows, and is then a single launch. A batch with another number of rows
uses the next larger graph. The missing rows are copies of its first row: they write the same data to the same slot.
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

# With more rows than this, computing a step takes longer than launching its kernels.
_MAX_ROWS = 256

Capture: TypeAlias = Callable[[Callable[[], torch.Tensor]], tuple[torch.Tensor, Callable[[], object]]]
"""Runs a step. Returns its output and a function that runs it again and overwrites the output."""


class CudaGraphs:
    """Captures steps as CUDA graphs that share one memory pool. The largest step must be captured first."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Callable[[], object]]:
        """See `Capture`."""
        # The first run compiles kernels and allocates workspaces of libraries, which must not be captured.
        side_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            step()
        torch.cuda.current_stream().wait_stream(side_stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = step()
        return output, graph.replay


@dataclass(frozen=True)
class _CapturedDecode:
    """A captured step with its input and output tensors."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    block_tables: torch.Tensor
    logits: torch.Tensor
    replay: Callable[[], object]

    def run(self, batch: RaggedBatch) -> torch.Tensor:
        """Return logits [captured rows, vocabulary]. Only the rows of the batch are meaningful."""
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
    """Runs captured graphs for steps that only decode, and the model's own code for all others."""

    def __init__(self, eager: EagerForward, capture: Capture) -> None:
        self._eager, self._capture = eager, capture
        self._captured: dict[int, _CapturedDecode] = {}
        """The captured steps by their number of rows, smallest first."""

    def prepare(self, caches: Sequence[LayerCache], max_rows: int, max_blocks: int) -> None:
        """Capture decodes of up to `max_rows` rows with up to `max_blocks` blocks each. This writes into block 0."""
        try:
            with torch.inference_mode():
                largest_first = [self._capture_decode(rows, caches, max_blocks) for rows in reversed(sizes(max_rows))]
        except RuntimeError as error:
            name = type(self._eager.module).__name__
            logger.warning(
                "the decodes of %s cannot be captured as CUDA graphs, so kernels are launched one by one: %s",
                name,
                error,
            )
            return
        self._captured = {len(captured.token_ids): captured for captured in reversed(largest_first)}

    def __call__(self, batch: RaggedBatch, caches: Sequence[LayerCache], rows: torch.Tensor) -> torch.Tensor:
        """See `ForwardPass`. `caches` must be those given to `prepare`."""
        if batch.num_single == batch.num_rows:
            for size, captured in self._captured.items():
                if size >= batch.num_rows:
                    return captured.run(batch)[rows]
        return self._eager(batch, caches, rows)

    def _capture_decode(self, rows: int, caches: Sequence[LayerCache], max_blocks: int) -> _CapturedDecode:
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

        logits, replay = self._capture(step)
        return _CapturedDecode(token_ids, positions, slots, block_tables, logits, replay)


def sizes(max_rows: int) -> list[int]:
    """The numbers of rows that are captured: 1, 2, 4, then the multiples of 8, and the largest."""
    largest = min(max_rows, _MAX_ROWS)
    return sorted({size for size in (1, 2, 4, *range(8, largest, 8), largest) if size <= largest})
