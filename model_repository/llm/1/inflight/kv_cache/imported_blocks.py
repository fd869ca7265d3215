"""Keys and values that were computed elsewhere: by another engine, or before a restart."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

REMOTE = "remote"


@dataclass(frozen=True, eq=False)
class ImportedBlocks:
    """The content of some blocks of a request, in host memory. When the request joins, it counts as computed."""

    num_tokens: int
    """So many tokens have keys and values, from the first one on. The last block may be partly filled."""
    data: NDArray[np.uint8]
    """[blocks, bytes per block], see `model.cache.block_bytes`. Nobody may change it any more."""
    first_block: int = 0
    """The data begins with this block of the request. It is of use only if all blocks before it are at hand."""
    source: str = REMOTE
    """Where the data came from, for the metrics."""

    def __post_init__(self) -> None:
        if self.data.ndim != 2 or not 0 < len(self.data) <= self.num_tokens - self.first_block:
            raise ValueError(f"{self.num_tokens} imported tokens cannot have data of the shape {self.data.shape}")
