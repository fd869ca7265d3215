"""How one request turns the hidden states of its tokens into an embedding."""

from dataclasses import dataclass
from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from inflight.errors import InvalidRequest

LAST, MEAN = "last", "mean"
POOLINGS = (LAST, MEAN)


@dataclass(frozen=True, kw_only=True)
class PoolingParams:
    """The embedding of one request: a function of what the model's head reads, the states after the last norm.

    Raises:
        InvalidRequest: a value is out of its bounds; the message names the field, the value and the bound.
    """

    pooling: str = LAST
    """`last`: the hidden state of the last token. `mean`: the mean of those of all tokens."""

    normalize: bool = True
    """Divide the embedding by its length (the L2 norm)."""

    dimensions: int | None = None
    """Keep the first numbers of the embedding, so many. Default: all of them."""

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise InvalidRequest(f"pooling is {self.pooling!r}; it must be {' or '.join(POOLINGS)}")
        if not isinstance(self.normalize, bool):
            raise InvalidRequest(f"normalize is {self.normalize!r}; it must be true or false")
        if self.dimensions is None:
            return
        if isinstance(self.dimensions, bool) or not isinstance(self.dimensions, Integral):
            raise InvalidRequest(f"dimensions is {self.dimensions!r}; it must be a whole number")
        if self.dimensions < 1:
            raise InvalidRequest(f"dimensions is {self.dimensions}; it must be at least 1")

    def embedding(self, total: NDArray[np.float64], count: int) -> NDArray[np.float32]:
        """Return the embedding [dimensions], given the sum [width] of the hidden states of `count` tokens."""
        kept = (total / count)[: self.dimensions]
        length = np.linalg.norm(kept)
        return (kept / length if self.normalize and length else kept).astype(np.float32)
