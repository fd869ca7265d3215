"""Runs the model over a step plan: swaps blocks, runs the forward pass and samples."""

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from inflight.config import EngineConfig
from inflight.errors import OutOfMemory
from inflight.guided_decoding.token_masks import TokenMasker, TokenMasks
from inflight.model.batch_arrays import BatchArrays
from inflight.model.cache import kv_tensors
from inflight.model.cache.block_bytes import bytes_per_block, read_blocks_into, write_blocks
from inflight.model.cache.host_cache import HostCache
from inflight.model.cache.memory import num_blocks, num_host_blocks, num_state_slots
from inflight.model.embeds.batch_embeds import BatchEmbeds
from inflight.model.forward import Outputs
from inflight.model.images.batch_images import BatchImages
from inflight.model.loading.loader import LoadedModel
from inflight.model.row_timing import measure_rows
from inflight.model.step import compute, run_forward
from inflight.scheduler.plan import StepPlan
from inflight.scheduler.row_times import RowTimes
from inflight.step_result import StepResult

logger = logging.getLogger(__name__)

T = TypeVar("T")
Pairs: TypeAlias = Sequence[tuple[int, int]]

# For each of both caches. A part of the 20 seconds that a start may take: a virtual machine with slow memory prefaults
# 1.5 GB in this time.
_PREFAULT_SECONDS = 3.0


class ModelRunner:
    """A loaded model with its KV cache.

    Raises:
        ValueError: The memory does not suffice for one block.
    """

    def __init__(self, model: LoadedModel, config: EngineConfig, beside: LoadedModel | None = None) -> None:
        """`beside` is a draft model, whose cache is to have as many blocks; they share the memory."""
        self._model = model
        self._block_size = config.block_size
        self.masker = TokenMasker(model.num_logits)
        shapes = [layer.shape for layer in model.layers]
        self.num_blocks = num_blocks(model, config, beside)
        if model.shards is not None:
            self.num_blocks = int(model.shards.least(self.num_blocks))
        self._caches = model.backend.allocate(shapes, self.num_blocks, config.block_size, model.dtype, model.device)
        if model.device.type == "cpu":
            _log_prefaulted("the KV cache", kv_tensors.prefault(self._caches, _PREFAULT_SECONDS))
        max_blocks = min(self.num_blocks, -(-model.max_model_len // config.block_size))
        model.forward.prepare(self._caches, config.max_sampled_rows, max_blocks)
        if model.states:
            # Several engines may have the same model. The slots of states are theirs, as blocks of the cache are.
            self._model = replace(model, forward=model.forward.with_own_states(num_state_slots(model, config)))
        self._host_cache = HostCache(self._caches, num_host_blocks(config, self.bytes_per_block))
        _log_prefaulted("the host memory for blocks", self._host_cache.prefault(_PREFAULT_SECONDS))
        self.num_host_blocks = self._host_cache.num_blocks
        self.swap_seconds_per_block = self._host_cache.seconds_per_block()

    def measure_rows(self, max_rows: int) -> RowTimes:
        """Measure steps of up to `max_rows` rows. Call this before the first request: it writes into the cache."""
        return measure_rows(self.run, block_size=self._block_size, num_blocks=self.num_blocks, max_rows=max_rows)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of a block of the cache in all layers."""
        return bytes_per_block(self._caches)

    @torch.inference_mode()
    def read_blocks(self, blocks: Sequence[int], found: NDArray[np.uint8]) -> None:
        """Write the bytes of blocks into `found` [blocks, bytes per block]. Only the stepping thread may call this."""
        read_blocks_into(self._caches, blocks, found)

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> list[StepResult]:
        """Compute the scheduled tokens. See `Runner.run`."""
        self.copy(plan.swapped_out, plan.forked, plan.swapped_in)
        for data, blocks in plan.imported:
            write_blocks(self._caches, blocks, data)
        masks = self.masker.begin(plan.sampling)
        with awaited(masks):
            return within_memory(lambda: compute(self._model, plan, self._caches, self._block_size, masks))

    def copy(self, out: Pairs, forked: Pairs, into: Pairs) -> None:
        """Make a plan's block copies. See `HostCache.copy`."""
        self._host_cache.copy(out, forked, into)

    def forward(
        self, arrays: BatchArrays, images: BatchImages | None = None, embeds: BatchEmbeds | None = None
    ) -> Outputs:
        """Run the model over a batch, without sampling.

        Raises:
            OutOfMemory: the device has too little memory.
        """
        return within_memory(lambda: run_forward(self._model, arrays, self._caches, None, images, embeds))


def _log_prefaulted(what: str, resident: float) -> None:
    if resident < 1.0:
        logger.info("prefaulted %.0f %% of %s; the rest is allocated on first use", 100 * resident, what)


@contextmanager
def awaited(masks: "Future[TokenMasks] | None") -> Iterator[None]:
    """Leave only when the masks of a step are there. If the step fails, the next one may need their grammars at once,
    and a grammar serves one thread at a time."""
    try:
        yield
    finally:
        if masks is not None:
            wait([masks])


def within_memory(work: Callable[[], T]) -> T:
    """Do some work.

    Raises:
        OutOfMemory: the device or the host has too little memory for it. All that it had allocated is free again.
    """
    try:
        return work()
    except (RuntimeError, MemoryError) as error:
        if not _lacks_memory(error):
            raise
        reason = str(error)
    # Inside the handler, the traceback would keep the step's tensors alive and nothing could be freed.
    torch.cuda.empty_cache()
    raise OutOfMemory(reason)


def _lacks_memory(error: RuntimeError | MemoryError) -> bool:
    """Return whether an exception means that an allocation failed, on the device or on the host.

    On CPUs, torch raises a plain RuntimeError. The C++ kernels let the standard library's `bad_alloc` through.
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return any(sign in str(error) for sign in ("can't allocate memory", "bad_alloc"))
