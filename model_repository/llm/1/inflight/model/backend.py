"""Which attention serves a model, and the layout of the cache that it wants."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from inflight.model import kv_tensors
from inflight.model.attention_interface import Attends
from inflight.model.cpu import kernel_attention
from inflight.model.cpu.kernel_attention import BatchTensors, KernelAttention
from inflight.model.kv_tensors import LayerCache, LayerShape
from inflight.model.paged_attention import PagedAttention
from inflight.model.ragged_batch import RaggedBatch


@dataclass(frozen=True)
class AttentionBackend:
    """How to attend, and over what."""

    name: str
    allocate: Callable[[Sequence[LayerShape], int, int, torch.dtype, torch.device], list[LayerCache]]
    attend: Callable[[RaggedBatch, Sequence[LayerCache], Sequence[int | None]], Attends]
    checked_block_size: int
    """Block size that the self-check uses: the smallest that the backend takes, so that there are many."""


PORTABLE = AttentionBackend("portable", kv_tensors.allocate, PagedAttention, checked_block_size=4)
CPU_KERNELS = AttentionBackend(
    "cpu kernels",
    kernel_attention.allocate,
    lambda batch, caches, windows: KernelAttention(BatchTensors.of(batch), caches, windows),
    checked_block_size=16,
)
