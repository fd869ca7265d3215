"""Runs decodes as captured CUDA graphs, which saves the cost of launching kernels one by one.

A step in which every request decodes launches the same kernels as the step before, on the same number of rows. Such a
step is captured once for each of some numbers of rows, and is then a single launch. A batch with another number of rows
uses the next larger graph. The missing rows are copies of its first row: they write the same data to the same slot.

A request with a draft is as many rows of one token, which share its blocks. Keys and values of all rows are written
before attention, so that each row finds those of the tokens before it.

All graphs read the same input tensors and write the same outputs, each the first rows of them. Their intermediate
results share one memory pool. So all graphs together need hardly more memory than the largest.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch

from inflight.model.attention.interface import use_attention
from inflight.model.cache.kv_tensors import LayerCache
from inflight.model.cache.peak_memory import peak_bytes
from inflight.model.cuda.decode_buffers import DecodeBuffers
from inflight.model.cuda.kernel_attention import BatchTensors, KernelAttention, PromptTiles, parts_for
from inflight.model.forward import EagerForward, ForwardPass, Outputs, forward
from inflight.model.ragged_batch import RaggedBatch

logger = logging.getLogger(__name__)

# With more rows than this, computing a step takes longer than launching its kernels.
_MAX_ROWS = 256
# Each token of a row reads the row's keys and values by itself. For longer rows, prompt tiles are faster.
_MAX_ROW_TOKENS = 16


class Graphs(Protocol):
    """Captures steps, so that they can run again."""

    def capture(self, step: Callable[[], object]) -> Callable[[], object]:
        """Capture a step and return a function that runs it again. The largest step must be captured first."""

    def peak_bytes(self, step: Callable[[], object]) -> int:
        """Run a step and return the memory in bytes that capturing it would take for intermediate results."""


class CudaGraphs:
    """CUDA graphs of one GPU that share one memory pool."""

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        # Each stream gets workspaces of libraries, so there should be only one.
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def capture(self, step: Callable[[], object]) -> Callable[[], object]:
        """See `Graphs`."""
        # The first run compiles kernels, which must not happen in a capture.
        self._run(step)
        graph = torch.cuda.CUDAGraph()
        device = self._stream.device
        # After a capture that fails, torch leaves its stream the current one. The second context takes it back.
        with (
            torch.cuda.device(device),
            torch.cuda.stream(torch.cuda.current_stream(device)),
            torch.cuda.graph(graph, pool=self._pool, stream=self._stream),
        ):
            step()
        return graph.replay

    def peak_bytes(self, step: Callable[[], object]) -> int:
        """See `Graphs`."""
        return peak_bytes(self._stream.device, lambda: self._run(step))

    def _run(self, step: Callable[[], object]) -> None:
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            step()
        current.wait_stream(self._stream)


class GraphedForward(ForwardPass):
    """Runs captured graphs for steps that only decode, with or without drafts, and the model's own code for others."""

    def __init__(self, eager: EagerForward, graphs: Graphs) -> None:
        self._eager, self._graphs = eager, graphs
        self._buffers: DecodeBuffers | None = None
        self._caches: Sequence[LayerCache] = ()
        """Those that the graphs read and write."""
        self._replays: dict[int, Callable[[], object]] = {}
        """Runs each captured step, by its number of rows, smallest first."""

    @torch.inference_mode()
    def bytes_to_prepare(self, caches: Sequence[LayerCache], max_rows: int, max_blocks: int) -> int:
        """Return the size of the buffers, plus what the largest captured step takes, which runs to measure it.

        The driver's own memory for the graphs is not included.
        """
        rows = min(max_rows, _MAX_ROWS)
        buffers = self._allocate(caches, rows, max_blocks)
        return buffers.nbytes + self._graphs.peak_bytes(lambda: self._decode(buffers, rows, caches))

    def prepare(self, caches: Sequence[LayerCache], max_rows: int, max_blocks: int) -> None:
        """Capture decodes of up to `max_rows` rows with up to `max_blocks` blocks each. This writes into block 0.

        If several engines share the model, the graphs are those of the last one. The others launch kernels one by one.
        """
        captured: dict[int, Callable[[], object]] = {}
        wanted = sizes(max_rows)
        try:
            with torch.inference_mode():
                buffers = self._allocate(caches, wanted[-1], max_blocks)
                for rows in reversed(wanted):
                    captured[rows] = self._graphs.capture(partial(self._decode, buffers, rows, caches))
        except RuntimeError as error:
            logger.warning(
                "only %d of %d sizes of decodes of %s could be captured as CUDA graphs; for smaller ones, the smallest "
                "graph runs if there is one, else kernels are launched one by one: %s",
                len(captured),
                len(wanted),
                type(self._eager.module).__name__,
                error,
            )
        if captured:
            self._buffers, self._caches, self._replays = buffers, caches, dict(reversed(captured.items()))

    def __call__(self, batch: RaggedBatch, caches: Sequence[LayerCache], rows: torch.Tensor) -> Outputs:
        """See `ForwardPass`."""
        if self._buffers is not None and caches is self._caches and batch.longest_row <= _MAX_ROW_TOKENS:
            for size, replay in self._replays.items():
                if size >= batch.num_tokens:
                    self._buffers.fill(batch, size)
                    replay()
                    return Outputs(self._buffers.logits[rows], self._buffers.hidden[: batch.num_tokens])
        return self._eager(batch, caches, rows)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `ForwardPass`."""
        return self._eager.head(hidden)

    def _allocate(self, caches: Sequence[LayerCache], rows: int, max_blocks: int) -> DecodeBuffers:
        """Allocate the buffers. The outputs of one row show how wide and of what type they are."""
        device = caches[0].keys.device
        nothing = torch.empty(0, 0, device=device)
        trial = DecodeBuffers.allocate(rows=1, max_blocks=1, logits=nothing, hidden=nothing)
        logits, hidden = (
            output.new_empty(rows if len(output) else 0, output.shape[1]) for output in self._outputs(trial, 1, caches)
        )
        return DecodeBuffers.allocate(rows, max_blocks, logits, hidden)

    def _decode(self, buffers: DecodeBuffers, rows: int, caches: Sequence[LayerCache]) -> None:
        outputs = self._outputs(buffers, rows, caches)
        buffers.logits[:rows] = outputs.logits
        buffers.hidden[:rows] = outputs.hidden

    def _outputs(self, buffers: DecodeBuffers, rows: int, caches: Sequence[LayerCache]) -> Outputs:
        token_ids, positions, places, slots, block_tables = buffers.first(rows)
        every, ones = torch.arange(rows, device=slots.device), torch.ones_like(slots)
        tiles = torch.stack((every, every, ones, places), dim=1)
        parts = parts_for(block_tables.shape[1] * caches[0].keys.shape[1], rows)
        batch = BatchTensors(slots, block_tables, tiles, parts, PromptTiles())
        with use_attention(KernelAttention(batch, caches, self._eager.windows)):
            return forward(self._eager.module, token_ids, positions, every)


def sizes(max_rows: int) -> list[int]:
    """The numbers of rows that are captured: 1, 2, 4, then the multiples of 8, and the largest."""
    largest = min(max_rows, _MAX_ROWS)
    return sorted({size for size in (1, 2, 4, *range(8, largest, 8), largest) if size <= largest})
