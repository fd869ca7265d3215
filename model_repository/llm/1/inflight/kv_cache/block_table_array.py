"""The block tables of all running requests in one array."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class BlockTableArray:
    """Block ids, [slots, blocks] int64. A request's table is one row, which changes only when the request gets blocks.

    A step therefore gathers its tables in one operation, however long they are. The array grows as needed.
    """

    def __init__(self) -> None:
        self._ids = np.zeros((8, 64), dtype=np.int64)
        self._free = list(range(7, -1, -1))

    def take(self) -> int:
        """Return a free slot, which is then in use."""
        if not self._free:
            size = len(self._ids)
            self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
            self._free = list(range(2 * size - 1, size - 1, -1))
        return self._free.pop()

    def give_back(self, slot: int) -> None:
        """Free a slot."""
        self._free.append(slot)

    def put(self, slot: int, first: int, blocks: Sequence[int]) -> None:
        """Write block ids into the table of a slot, starting at index `first`."""
        end, width = first + len(blocks), self._ids.shape[1]
        if end > width:
            grown = np.zeros((len(self._ids), max(end, 2 * width)), dtype=np.int64)
            grown[:, :width] = self._ids
            self._ids = grown
        self._ids[slot, first:end] = blocks

    def gather(self, slots: Sequence[int], counts: Sequence[int]) -> NDArray[np.int64]:
        """Return a copy of the first `counts[i]` ids of `slots[i]`, [R, max(counts)].

        Each row is padded with its first id.
        """
        lengths = np.array(counts, dtype=np.int64)
        width = int(lengths.max(initial=0))
        tables = self._ids[slots, :width]
        return np.where(np.arange(width) < lengths[:, None], tables, tables[:, :1])


def tables_of(tables: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """Return what `BlockTableArray.gather` returns for these tables. For steps that no scheduler plans."""
    array = BlockTableArray()
    slots = [array.take() for _ in tables]
    for slot, blocks in zip(slots, tables, strict=True):
        array.put(slot, 0, blocks)
    return array.gather(slots, [len(blocks) for blocks in tables])
