"""Which attention serves a model, and the layout of the cache that it wants."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from inflight.model.attention.interface import AttentionImpl
from inflight.model.attention.torch_attention import TorchAttention
from inflight.model.cache import kv_tensors
from inflight.model.cache.kv_tensors import LayerCache, LayerShape
from inflight.model.cpu import kernel_attention
from inflight.model.ragged_batch import RaggedBatch


@dataclass(frozen=True)
class AttentionBackend:
    """How to attend, and over what."""

    name: str
    allocate: Callable[[Sequence[LayerShape], int, int, torch.dtype, torch.device], list[LayerCache]]
    attend: Callable[[RaggedBatch, Sequence[LayerCache], Sequence[int | None]], AttentionImpl]
    checked_block_size: int
    """Block size that the self-check uses: the smallest that the backend takes, so that there are many."""


def _cpu_attention(batch: RaggedBatch, caches: Sequence[LayerCache], windows: Sequence[int | None]) -> AttentionImpl:
    return kernel_attention.KernelAttention(kernel_attention.BatchTensors.of(batch), caches, windows)


def _cuda_attention(batch: RaggedBatch, caches: Sequence[LayerCache], windows: Sequence[int | None]) -> AttentionImpl:
    # Here, as torch for the CPU comes without the compiler of these kernels.
    from inflight.model.cuda import kernel_attention

    return kernel_attention.KernelAttention(kernel_attention.BatchTensors.of(batch), caches, windows)


TORCH = AttentionBackend("torch", kv_tensors.allocate, TorchAttention, checked_block_size=4)
CPU_KERNELS = AttentionBackend("cpu kernels", kernel_attention.allocate, _cpu_attention, checked_block_size=16)
CUDA_KERNELS = AttentionBackend("cuda kernels", kv_tensors.allocate, _cuda_attention, checked_block_size=16)
