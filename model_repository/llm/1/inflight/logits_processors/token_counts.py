"""Counts how often each token has occurred."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


class TokenCounts:
    """The different tokens of a growing sequence and their counts, as arrays. Adding a token takes O(1)."""

    def __init__(self, token_ids: Iterable[int] = ()) -> None:
        self._index: dict[int, int] = {}
        self._tokens = np.empty(16, dtype=np.int64)
        self._counts = np.empty(16, dtype=np.int64)
        for token in token_ids:
            self.add(token)

    def add(self, token: int) -> None:
        """Count one more occurrence."""
        size = len(self._index)
        index = self._index.setdefault(token, size)
        if index < size:
            self._counts[index] += 1
            return
        if size == len(self._tokens):
            self._tokens, self._counts = np.resize(self._tokens, 2 * size), np.resize(self._counts, 2 * size)
        self._tokens[size], self._counts[size] = token, 1

    @property
    def tokens(self) -> NDArray[np.int64]:
        """The different tokens, [N]."""
        return self._tokens[: len(self._index)]

    @property
    def counts(self) -> NDArray[np.int64]:
        """How often each of `tokens` has occurred, [N]."""
        return self._counts[: len(self._index)]
