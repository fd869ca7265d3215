"""Blocks of the KV cache as plain bytes, for what leaves the engine: disks and other engines.

The bytes of a block are those of its keys and values, layer after layer, in the layout of the attention backend. Only
an engine with the same `model.cache.layout.fingerprint` can read them.
"""

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from inflight.model.cache.kv_tensors import LayerCache

_Data = TypeVar("_Data", torch.Tensor, NDArray[np.uint8])


def bytes_per_block(caches: Sequence[LayerCache]) -> int:
    """Return how many bytes a block has in all layers."""
    return sum(tensor[0].nbytes for tensor in _tensors(caches))


def read_blocks(caches: Sequence[LayerCache], blocks: Sequence[int]) -> NDArray[np.uint8]:
    """Return the bytes of blocks, [blocks, bytes per block], as a copy in host memory."""
    found = np.empty((len(blocks), bytes_per_block(caches)), dtype=np.uint8)
    read_blocks_into(caches, blocks, found)
    return found


def read_blocks_into(caches: Sequence[LayerCache], blocks: Sequence[int], found: NDArray[np.uint8]) -> None:
    """Like `read_blocks`, but write the bytes into `found`."""
    device, target = caches[0].keys.device, torch.from_numpy(found)
    index = torch.tensor(blocks, dtype=torch.int64, device=device)
    read = torch.empty_like(target, device=device) if device.type != "cpu" else target
    for tensor, part in zip(_tensors(caches), _parts(caches, read), strict=True):
        part.copy_(tensor.index_select(0, index).reshape(len(blocks), -1).view(torch.uint8))
    if read is not target:
        target.copy_(read)


def write_blocks(caches: Sequence[LayerCache], blocks: Sequence[int], data: NDArray[np.uint8]) -> None:
    """Write bytes [blocks, bytes per block], which `read_blocks` returned, into blocks.

    Raises:
        ValueError: the bytes have another shape.
    """
    if data.shape != (len(blocks), bytes_per_block(caches)):
        raise ValueError(f"data has the shape {data.shape}; it must be {(len(blocks), bytes_per_block(caches))}")
    device = caches[0].keys.device
    if device.type == "cpu":
        # This takes half as long as torch's `index_copy_`.
        for tensor, columns in zip(_tensors(caches), _parts(caches, data), strict=True):
            target = tensor.view(torch.uint8).numpy()
            target[list(blocks)] = columns.reshape(len(blocks), *target.shape[1:])
        return
    index = torch.tensor(blocks, dtype=torch.int64, device=device)
    # The bytes may be a read-only view of a file, which torch does not take.
    source = torch.from_numpy(data if data.flags.writeable else data.copy()).to(device)
    for tensor, part in zip(_tensors(caches), _parts(caches, source), strict=True):
        tensor.index_copy_(0, index, part.contiguous().view(tensor.dtype).view(len(blocks), *tensor.shape[1:]))


def _tensors(caches: Sequence[LayerCache]) -> Iterator[torch.Tensor]:
    for cache in caches:
        yield cache.keys
        if cache.values.numel():  # An indexer has keys alone.
            yield cache.values


def _parts(caches: Sequence[LayerCache], data: _Data) -> Iterator[_Data]:
    """Yield the columns of `data` [blocks, bytes per block] that belong to each tensor."""
    first = 0
    for tensor in _tensors(caches):
        width = tensor[0].nbytes
        yield data[:, first : first + width]
        first += width
