"""Computes how many blocks the KV cache has."""

import logging
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from inflight.config import EngineConfig
from inflight.host_memory import free_memory
from inflight.kv_cache.recurrent_states import StatePlan
from inflight.model.cache import kv_tensors
from inflight.model.cache.kv_tensors import LayerShape
from inflight.model.cache.peak_memory import peak_bytes
from inflight.model.loading.loader import LoadedModel
from inflight.model.step import compute
from inflight.request import Request
from inflight.sampling_params import MAX_LOGPROBS, SamplingParams
from inflight.scheduler.plan import ScheduledRequest, StepPlan

logger = logging.getLogger(__name__)

_GPU_FRACTION, _HOST_FRACTION = 0.9, 0.2


def num_blocks(model: LoadedModel, config: EngineConfig, beside: LoadedModel | None = None) -> int:
    """Return the configured number of blocks, else as many as fit into a fraction of the free memory.

    If another model has a cache of as many blocks `beside` it, this memory is for both.

    In the second case it is at most as many as `max_num_seqs` requests of the longest context can use.

    Raises:
        ValueError: The memory does not suffice for the recurrent states and one block, or for `kv_cache_tokens`.
    """
    state_bytes = _state_bytes(model, config)
    bytes_per_token = sum(
        kv_tensors.bytes_per_token(_shapes(each), each.dtype) for each in (model, beside) if each is not None
    )
    bytes_per_token += sum(layer.bytes_per_token for layer in model.states)
    if config.kv_cache_tokens is not None:
        needed, left = config.kv_cache_tokens * bytes_per_token, _free_memory(model, config) - state_bytes
        if needed > left:
            raise ValueError(
                f"kv_cache_tokens is {config.kv_cache_tokens}; with {bytes_per_token} bytes each they take "
                f"{needed / 2**30:.1f} GiB, and {left / 2**30:.1f} GiB are free"
            )
        return config.kv_cache_tokens // config.block_size
    free = _free_memory(model, config) - _largest_step_bytes(model, config) - _bytes_to_prepare(model, config)
    free -= state_bytes
    most = config.max_num_seqs * -(-model.max_model_len // config.block_size)
    if not bytes_per_token:
        return most  # No layer has keys and values. Blocks only name prefixes.
    fraction = config.kv_cache_memory_fraction or (_GPU_FRACTION if model.device.type == "cuda" else _HOST_FRACTION)
    affordable = int(free * fraction) // (bytes_per_token * config.block_size)
    if affordable < 1:
        raise ValueError(
            f"kv_cache_memory_fraction is {fraction}; this part of {free} bytes of free memory is less than "
            f"one block of {config.block_size} tokens with {bytes_per_token} bytes each"
        )
    blocks = min(affordable, most)
    tokens = blocks * config.block_size
    logger.info("KV cache: %d tokens, %.1f GiB", tokens, tokens * bytes_per_token / 2**30)
    return blocks


def _state_bytes(model: LoadedModel, config: EngineConfig) -> int:
    """Return how much memory the recurrent states take. Raises ValueError if so much is not free."""
    slots = num_state_slots(model, config)
    needed, free = slots * sum(layer.num_bytes for layer in model.states), _free_memory(model, config)
    if needed > free:
        raise ValueError(
            f"max_num_seqs is {config.max_num_seqs}; the recurrent states then take {needed} bytes, and {free} are free"
        )
    if needed:
        logger.info("recurrent states: %d slots, %.1f GiB", slots, needed / 2**30)
    return needed


def num_state_slots(model: LoadedModel, config: EngineConfig) -> int:
    """Return how many recurrent states there are at most, snapshots included."""
    return config.max_num_seqs + num_state_snapshots(model, config)


def num_state_snapshots(model: LoadedModel, config: EngineConfig) -> int:
    """Return how many snapshots of recurrent states there are at most. States that grow with each token have none."""
    grow = any(layer.bytes_per_token for layer in model.states)
    return config.max_num_seqs if config.enable_prefix_caching and not grow else 0


def num_host_blocks(config: EngineConfig, block_bytes: int) -> int:
    """Return how many blocks of `block_bytes` bytes the host memory for offloaded blocks holds.

    Of several ranks, each has its part of the memory, as it has a part of each block.

    Raises:
        ValueError: The host has less free memory than `kv_offloading_size`.
    """
    size, free = round(config.kv_offloading_size * 2**30), free_memory()
    if size > free:
        raise ValueError(f"kv_offloading_size is {config.kv_offloading_size} GiB; {free / 2**30:.1f} GiB are free")
    return size // config.ranks_per_machine // block_bytes if size else config.swap_space_tokens // config.block_size


def _free_memory(model: LoadedModel, config: EngineConfig) -> int:
    if model.device.type == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(model.device)[0]
    # The ranks of a machine share its memory.
    return free_memory() // config.ranks_per_machine


def _largest_step_bytes(model: LoadedModel, config: EngineConfig) -> int:
    """Measure what the largest step needs on a GPU besides weights and cache. The CPU's fraction leaves enough room."""
    return peak_bytes(model.device, largest_step(model, config)) if model.device.type == "cuda" else 0


def _bytes_to_prepare(model: LoadedModel, config: EngineConfig) -> int:
    one_block = model.backend.allocate(_shapes(model), 1, config.block_size, model.dtype, model.device)
    max_blocks = -(-model.max_model_len // config.block_size)
    return model.forward.bytes_to_prepare(one_block, config.max_sampled_rows, max_blocks)


def largest_step(model: LoadedModel, config: EngineConfig) -> Callable[[], object]:
    """Allocate a cache for a step with as many tokens and sampled rows as allowed. Return a function that runs it."""
    plan = largest_plan(config, model.max_model_len, scored=model.hidden_width is not None)
    blocks = plan.block_tables.size
    caches = model.backend.allocate(_shapes(model), blocks, config.block_size, model.dtype, model.device)

    return partial(compute, model, plan, caches, config.block_size)


def _shapes(model: LoadedModel) -> list[LayerShape]:
    return [layer.shape for layer in model.layers]


def largest_plan(config: EngineConfig, max_model_len: int, *, scored: bool = True) -> StepPlan:
    """Make a plan that computes `max_num_batched_tokens` tokens and samples for `max_num_seqs` requests with drafts.

    It has fewer tokens if they cannot be split evenly or would exceed `max_model_len`. No request is without a token.
    `scored`: the prompts are scored, too.
    """
    rows = min(config.max_num_seqs, config.max_num_batched_tokens)
    length = min(config.max_num_batched_tokens // rows, max_model_len)
    # These parameters take the most memory to sample.
    params = SamplingParams(
        temperature=1.0, top_p=0.9, top_k=0, min_p=0.0, prompt_logprobs=MAX_LOGPROBS if scored else None
    )
    requests = [Request(str(row), [0] * length, params, max_tokens=1, seed=0) for row in range(rows)]
    tables = np.arange(rows * -(-length // config.block_size), dtype=np.int64).reshape(rows, -1)
    draft = min(length - 1, config.max_draft)
    scheduled = tuple(ScheduledRequest.next_of(r, length)._replace(num_draft=draft) for r in requests)
    return StepPlan(scheduled, tables, states=StatePlan(range(rows), [length] * rows))
