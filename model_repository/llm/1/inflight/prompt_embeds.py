"""The embeddings in a prompt, and where they go."""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PromptEmbeds:
    """Embeddings that take the place of tokens of a prompt."""

    places: Ints
    """[embeddings], the places in the prompt, ascending; at least one."""
    values: Any
    """[embeddings, width], a torch tensor in the host's memory, in the model's type."""
    digests: tuple[bytes, ...]
    """One for each embedding. Equal digests mean equal values."""

    @property
    def first_place(self) -> int:
        """The first place in the prompt that has an embedding."""
        return int(self.places[0])

    def between(self, first: int, end: int) -> slice:
        """Return which embeddings go to the places from `first` up to `end`."""
        return slice(bisect_left(self.places, first), bisect_left(self.places, end))

    def digests_between(self, first: int, end: int) -> bytes:
        """Return what names the embeddings from `first` up to `end`, and where they are after `first`."""
        those = self.between(first, end)
        return (self.places[those] - first).tobytes() + b"".join(self.digests[those])
