"""How one request turns the hidden states of its tokens into an embedding, or into probabilities of classes."""

from dataclasses import dataclass
from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from inflight.errors import InvalidRequest

LAST, MEAN = "last", "mean"
POOLINGS = (LAST, MEAN)
EMBED, CLASSIFY = "embed", "classify"
TASKS = (EMBED, CLASSIFY)


@dataclass(frozen=True, kw_only=True)
class PoolingParams:
    """What one request wants: a function of what the model's head reads, the states after the last norm.

    Raises:
        InvalidRequest: a value is out of its bounds; the message names the field, the value and the bound.
    """

    task: str = EMBED
    """`embed`: an embedding. `classify`: the probabilities of the classes, from a model that classifies. The other
    fields but `use_activation` are those of an embedding."""

    use_activation: bool = True
    """False: the logits of the classes in place of their probabilities."""

    pooling: str = LAST
    """`last`: the hidden state of the last token. `mean`: the mean of those of all tokens."""

    normalize: bool = True
    """Divide the embedding by its length (the L2 norm)."""

    dimensions: int | None = None
    """Keep the first numbers of the embedding, so many. Default: all of them."""

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise InvalidRequest(f"task is {self.task!r}; it must be {' or '.join(TASKS)}")
        if not isinstance(self.use_activation, bool):
            raise InvalidRequest(f"use_activation is {self.use_activation!r}; it must be true or false")
        if self.task == CLASSIFY and (self.pooling, self.normalize, self.dimensions) != (LAST, True, None):
            raise InvalidRequest(
                "pooling, normalize or dimensions is given with the task classify; it has no such field"
            )
        if self.task == EMBED and not self.use_activation:
            raise InvalidRequest("use_activation is false; it must be absent with the task embed")
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
