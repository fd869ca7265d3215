"""The different tokens of a growing sequence."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

_ROOM = 16


class DistinctTokens:
    """The different tokens of a sequence as an array, in the order of their first occurrence. Adding one takes O(1)."""

    def __init__(self, token_ids: Iterable[int] = ()) -> None:
        self._index = {token: index for index, token in enumerate(dict.fromkeys(token_ids))}
        self._tokens = np.empty(2 * len(self._index) + _ROOM, dtype=np.int64)
        self._tokens[: len(self._index)] = list(self._index)

    def __contains__(self, token: int) -> bool:
        return token in self._index

    def index(self, token: int) -> int | None:
        """Return the index of a token in `tokens`, or None if it is not there."""
        return self._index.get(token)

    def add(self, token: int) -> int:
        """Add a token, unless it is there, and return its index in `tokens`."""
        size = len(self._index)
        index = self._index.setdefault(token, size)
        if index == size:
            if size == len(self._tokens):
                self._tokens = np.resize(self._tokens, 2 * size)
            self._tokens[size] = token
        return index

    @property
    def tokens(self) -> NDArray[np.int64]:
        """[N]."""
        return self._tokens[: len(self._index)]
