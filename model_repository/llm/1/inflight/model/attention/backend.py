"""The attention backends: each has an attention implementation and a layout of the KV cache."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from inflight.model.attention.interface import AttentionImpl
from inflight.model.attention.torch_attention import TorchAttention
from inflight.model.cache import kv_tensors
from inflight.model.cache.kv_tensors import LayerCache, LayerShape
from inflight.model.cpu import kernel_attention
from inflight.model.ragged_batch import RaggedBatch


class Attend(Protocol):
    """Makes the attention implementation of a batch. See `TorchAttention`."""

    def __call__(
        self,
        batch: RaggedBatch,
        caches: Sequence[LayerCache],
        windows: Sequence[int | None],
        ahead: Sequence[bool] = (),
    ) -> AttentionImpl: ...


@dataclass(frozen=True)
class AttentionBackend:
    """Allocates a KV cache in its own layout and attends over it."""

    name: str
    allocate: Callable[[Sequence[LayerShape], int, int, torch.dtype, torch.device], list[LayerCache]]
    attend: Attend
    checked_block_size: int
    """Block size of the self-check: the smallest that the backend accepts, so that the prompts need many blocks."""


def _cpu_attention(
    batch: RaggedBatch, caches: Sequence[LayerCache], windows: Sequence[int | None], ahead: Sequence[bool] = ()
) -> AttentionImpl:
    tensors = kernel_attention.BatchTensors.of(batch)
    if any(ahead) and batch.images is not None and batch.images.sees_to is not None:
        image_tiles = kernel_attention.image_tiles(batch)
        tiles = [image_tiles if sees_ahead else tensors.tiles for sees_ahead in ahead]
        return kernel_attention.KernelAttention(tensors, caches, windows, tiles)
    return kernel_attention.KernelAttention(tensors, caches, windows)


def _cuda_attention(
    batch: RaggedBatch, caches: Sequence[LayerCache], windows: Sequence[int | None], ahead: Sequence[bool] = ()
) -> AttentionImpl:
    if any(ahead) and batch.images is not None and batch.images.sees_to is not None:
        # Such batches are few, and the kernels cannot look ahead.
        return TorchAttention(batch, caches, windows, ahead)
    # The import is here because these kernels need the package triton, which torch for CPUs does not install.
    from inflight.model.cuda import kernel_attention

    return kernel_attention.KernelAttention(kernel_attention.BatchTensors.of(batch), caches, windows)


TORCH = AttentionBackend("torch", kv_tensors.allocate, TorchAttention, checked_block_size=4)
CPU_KERNELS = AttentionBackend("cpu kernels", kernel_attention.allocate, _cpu_attention, checked_block_size=16)
CUDA_KERNELS = AttentionBackend("cuda kernels", kv_tensors.allocate, _cuda_attention, checked_block_size=16)
