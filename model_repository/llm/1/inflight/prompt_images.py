"""The images of a prompt, as a model sees them."""

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PromptImages:
    """What a model's encoder made of all images of a prompt, and where it goes."""

    places: tuple[tuple[int, int, bytes], ...]
    """The first token of each image that a feature takes, the one after the last, and the image's digest, in order."""
    rows: Ints
    """[features], the places in the prompt that features take, in order."""
    features: Any
    """The `Features` of `model/images/features.py`."""
    positions: Ints | None = None
    """[dimensions, prompt], the positions of the prompt's tokens, if the model divides them into time, height and width
    (M-RoPE, as Qwen2-VL has it). None: the tokens follow one another."""
    sees_ahead: bool = False
    """Whether the tokens of an image attend to those after them in the same image, as in Gemma 3."""

    @cached_property
    def uncut(self) -> list[tuple[int, int]]:
        """The first token of each part of the prompt whose tokens attend to one another, and the one after its last.

        One step must compute all that is left of such a part: keys and values of its tokens depend on the later ones.
        """
        if not self.sees_ahead:
            return []
        starts = np.searchsorted(self.rows, [begin for begin, _, _ in self.places])
        borders = np.union1d(np.flatnonzero(np.diff(self.rows) != 1) + 1, starts)
        runs = np.split(self.rows, borders[(borders > 0) & (borders < len(self.rows))])
        return [(int(run[0]), int(run[-1]) + 1) for run in runs]

    @property
    def first_place(self) -> int:
        """The first place in the prompt that has a token of an image."""
        return self.places[0][0]

    def last_end(self, first: int, most: int) -> int:
        """Return the last place up to `most` where a chunk of the prompt that begins at `first` may end.

        It is `first` if there is none.
        """
        begin, end = self._uncut_at(most - 1)
        return most if most >= end else max(begin, first)

    def next_end(self, first: int) -> int:
        """Return the first place after `first` where a chunk of the prompt may end."""
        return max(first + 1, self._uncut_at(first)[1])

    def _uncut_at(self, token: int) -> tuple[int, int]:
        """Return the part of `uncut` that has a token; (0, 0) if none has it."""
        index = bisect_right(self.uncut, token, key=lambda part: part[0]) - 1
        if index < 0 or token >= self.uncut[index][1]:
            return 0, 0
        return self.uncut[index]

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
