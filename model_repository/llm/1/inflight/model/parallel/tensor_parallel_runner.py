"""Runs a model that is divided over ranks: rank 0's side of every step."""

import pickle
import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TypeVar

import numpy as np
import torch

from inflight.config import EngineConfig
from inflight.errors import EngineDead
from inflight.model.batch_arrays import BatchArrays, Ints
from inflight.model.forward import Outputs
from inflight.model.lora.adapter_weights import AdapterWeights
from inflight.model.lora.lora_layers import AdaptedLayers
from inflight.model.parallel.adapter_message import adapter_messages, put_on_all_ranks
from inflight.model.parallel.divided_model import LOADING_SECONDS, DividedModel
from inflight.model.parallel.inserts import Inserts
from inflight.model.parallel.protocol import ADAPTER, ALLOCATE, HEAD, RENEW, STEP
from inflight.model.parallel.step_message import StepMessage
from inflight.model.row_timing import measure_rows
from inflight.model.runner import ModelRunner, awaited, within_memory
from inflight.model.sampling.sampling_batch import SamplingBatch
from inflight.model.step import answers
from inflight.scheduler.plan import StepPlan
from inflight.scheduler.row_times import RowTimes
from inflight.step_result import StepResult

T = TypeVar("T")

# Longer than a collective waits, so that a rank can say that one has failed.
_STEP_SECONDS = 75.0

_generations = count(1)


class TensorParallelRunner:
    """Rank 0's runner. It tells the other ranks what to compute, computes its own part, and samples.

    All ranks run the same forward pass, each over its own part of the KV cache. The blocks have the same numbers
    everywhere, so one plan serves all; there are as many as the rank with the least memory has room for. A failure on
    one rank is one on all: they leave the step, connect anew, and the step may be planned again.

    As in vLLM, the scheduler runs in one process, and the others get each step's batch.
    """

    def __init__(self, model: DividedModel, config: EngineConfig) -> None:
        """Allocate the KV cache of all ranks. Raises ValueError if the memory does not suffice for one block.

        Earlier runners of the same model must not be used any more.
        """
        self._model, self._block_size = model, config.block_size
        model.workers.tell(ALLOCATE, pickle.dumps(config))
        self._mine = model.together(lambda: ModelRunner(model.mine, config), LOADING_SECONDS)
        self.masker = self._mine.masker
        self.num_blocks, self.num_host_blocks = self._mine.num_blocks, self._mine.num_host_blocks
        self.swap_seconds_per_block = self._mine.swap_seconds_per_block
        self._commands = threading.Lock()
        """Held for a step, or while a part of an adapter is put on all ranks."""
        if model.mine.adapters is not None and model.mine.adapters.cache is not None:
            model.mine.adapters.cache.put = partial(self._put_adapter, model.mine.adapters.layers)

    def measure_rows(self, max_rows: int) -> RowTimes:
        """See `ModelRunner.measure_rows`."""
        return measure_rows(self.run, block_size=self._block_size, num_blocks=self.num_blocks, max_rows=max_rows)

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> list[StepResult]:
        """Compute the scheduled tokens. See `Runner.run`.

        Raises:
            OutOfMemory: a rank had too little memory.
            EngineDead: a rank has ended or stands still. No further step can be run.
        """
        masks = self.masker.begin(plan.sampling)
        with awaited(masks), self._commands:
            sampling = SamplingBatch.of(plan.sampling)
            arrays = BatchArrays.of(plan, self._block_size)
            inserts = within_memory(lambda: Inserts.of(plan.scheduled, arrays, self._model.mine.device))
            message = StepMessage.of(plan, arrays, inserts.places).encode()
            outputs = self._together(STEP, message, lambda: self._copy_and_compute(plan, arrays, inserts))
            return within_memory(lambda: answers(plan, arrays, outputs, self._head, sampling, masks))

    def _copy_and_compute(self, plan: StepPlan, arrays: BatchArrays, inserts: Inserts) -> Outputs:
        self._mine.copy(plan.swapped_out, plan.forked, plan.swapped_in)
        return self._mine.forward(arrays, *within_memory(lambda: inserts.broadcast(self._model.shards)))

    def _head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits [S, vocabulary] of hidden states [S, width], of which each rank computes its columns."""
        shards, forward = self._model.shards, self._model.mine.forward
        sizes = np.array(hidden.shape, dtype=np.int64)
        return self._together(HEAD, sizes, lambda: within_memory(lambda: forward.head(shards.broadcast(hidden))))

    def _put_adapter(self, layers: AdaptedLayers, slot: int, adapter: AdapterWeights) -> None:
        """Put an adapter into a slot on all ranks, in parts, between which steps may run. Any thread may call this."""
        for message in adapter_messages(layers, slot, adapter):
            put = partial(put_on_all_ranks, layers, message, self._model.shards, adapter)
            with self._commands:
                self._together(ADAPTER, message, put)

    def _together(self, command: bytes, argument: Ints, work: Callable[[], T]) -> T:
        try:
            self._model.workers.tell(command, argument.tobytes())
            return self._model.together(work, _STEP_SECONDS)
        except EngineDead:
            raise
        except BaseException:  # Ctrl-C too: whoever has called `Engine.generate` may go on.
            self._renew()
            raise

    def _renew(self) -> None:
        """Connect all ranks anew, after one has left a step."""
        self._model.shards.abandon()  # After Ctrl-C, the others may still wait for this rank.
        generation = next(_generations)
        self._model.workers.tell(RENEW, np.array([generation], dtype=np.int64).tobytes())
        try:
            self._model.together(lambda: self._model.shards.renew(generation), _STEP_SECONDS)
        except RuntimeError as error:
            self._model.workers.kill(f"the ranks cannot connect again: {error}")
            raise EngineDead(f"the ranks cannot connect again: {error}") from error
