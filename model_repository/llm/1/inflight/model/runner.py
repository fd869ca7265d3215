"""Runs the model over a plan: the cache's memory, the forward pass, sampling."""

import contextlib
import logging
import os

import torch

from inflight.config import EngineConfig
from inflight.model import kv_tensors
from inflight.model.loader import LoadedModel
from inflight.model.ragged_batch import RaggedBatch
from inflight.model.sampler import sample
from inflight.model.swap import HostCache
from inflight.outputs import TokenLogprobs
from inflight.scheduler.plan import StepPlan

logger = logging.getLogger(__name__)


class ModelRunner:
    """A loaded model with its KV cache.

    Raises:
        ValueError: the memory does not suffice for one block.
    """

    def __init__(self, model: LoadedModel, config: EngineConfig) -> None:
        self._model = model
        self._block_size = config.block_size
        shapes = [layer.shape for layer in model.layers]
        self.num_blocks = _num_blocks(model, config, kv_tensors.bytes_per_token(shapes, model.dtype))
        self._caches = model.backend.allocate(shapes, self.num_blocks, config.block_size, model.dtype, model.device)
        self._host_cache = HostCache(self._caches, config.swap_space_tokens // config.block_size)
        self.num_host_blocks = self._host_cache.num_blocks
        self.swap_seconds_per_block = self._host_cache.seconds_per_block()

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> tuple[list[int | None], list[TokenLogprobs | None]]:
        """Compute a plan's tokens; a new token, and log-probabilities if asked for, for each of `plan.sampling`.

        A token is None where the logits are not numbers.
        """
        self._host_cache.copy(plan.swapped_out, plan.swapped_in)
        batch = RaggedBatch.build(plan, self._block_size, self._model.device)
        logits = self._model.forward(batch, self._caches, batch.logit_rows)
        sampled = sample(logits, batch.sampling)
        by_request = dict(zip((r.request_id for r in batch.sampling), sampled, strict=True))
        # The batch has its own order of rows.
        in_order = [by_request[request.request_id] for request in plan.sampling]
        return [token for token, _ in in_order], [logprobs for _, logprobs in in_order]


def _num_blocks(model: LoadedModel, config: EngineConfig, bytes_per_token: int) -> int:
    if config.kv_cache_tokens is not None:
        return config.kv_cache_tokens // config.block_size
    free = _free_memory(model.device)
    affordable = int(free * config.kv_cache_memory_fraction) // (bytes_per_token * config.block_size)
    if affordable < 1:
        raise ValueError(
            f"kv_cache_memory_fraction is {config.kv_cache_memory_fraction}; of {free} bytes of free memory that is "
            f"less than one block of {config.block_size} tokens at {bytes_per_token} bytes"
        )
    blocks = min(affordable, config.max_num_seqs * -(-model.max_model_len // config.block_size))
    tokens = blocks * config.block_size
    logger.info("KV cache: %d tokens, %.1f GiB", tokens, tokens * bytes_per_token / 2**30)
    return blocks


def _free_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    # What the kernel would give back under pressure counts as free too.
    with contextlib.suppress(FileNotFoundError), open("/proc/meminfo") as meminfo:
        for line in meminfo:
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    return free
