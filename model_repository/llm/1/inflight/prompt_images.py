"""The images of a prompt, as a model sees them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PromptImages:
    """What a model's encoder made of all images of a prompt, and where it goes."""

    places: tuple[tuple[int, int, bytes], ...]
    """The first token of each image in the prompt, the one after its last, and the image's digest, in order."""
    rows: Ints
    """[features], the places in the prompt that features take, in order."""
    features: Any
    """The `Features` of `model/images/features.py`."""
    positions: Ints | None = None
    """[dimensions, prompt], the positions of the prompt's tokens, if the model divides them into time, height and width
    (M-RoPE, as Qwen2-VL has it). None: the tokens follow one another."""

    def digests_between(self, first: int, end: int) -> bytes:
        """Return the digests of the images that have tokens from `first` up to `end`."""
        return b"".join(digest for begin, after, digest in self.places if begin < end and first < after)

    def positions_of(self, first: int, end: int) -> Ints:
        """Return the positions [dimensions, tokens] of the tokens from `first` up to `end`, outputs included.

        `positions` must be given. After the prompt, the tokens follow one another, behind all positions of the prompt.
        (transformers' `generate` continues at those of the last token. That differs if the prompt ends with an image.)
        """
        assert self.positions is not None
        length = self.positions.shape[1]
        after = np.arange(max(first, length), max(end, length)) - length + self.positions.max() + 1
        return np.concatenate(
            [self.positions[:, first:end], np.broadcast_to(after, (len(self.positions), len(after)))], axis=1
        )
