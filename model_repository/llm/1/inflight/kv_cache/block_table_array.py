"""The block tables of all running requests in one array."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class BlockTableArray:
    """Block ids, [slots, blocks] int64. A request's table is one row, which changes only when the request gets blocks.

    Behind its blocks, a row repeats its first block, so that a step reads only blocks of the request itself. A step
    gathers its tables in one operation, however long they are. The array grows as needed.
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
        """Write block ids into the table of a slot, starting at index `first`. Index 0 starts a new table."""
        end, width = first + len(blocks), self._ids.shape[1]
        if end > width:
            padding = np.repeat(self._ids[:, :1], max(end - width, width), axis=1)
            self._ids = np.concatenate((self._ids, padding), axis=1)
        if first == 0:
            self._ids[slot] = blocks[0]
        self._ids[slot, first:end] = blocks

    def cut(self, slot: int, count: int) -> None:
        """Keep only the first `count` blocks of a slot, at least one."""
        self._ids[slot, count:] = self._ids[slot, 0]

    def gather(self, slots: Sequence[int], width: int) -> NDArray[np.int64]:
        """Return a copy of the first `width` entries of each slot, [R, width]."""
        return self._ids[np.array(slots, dtype=np.int64), :width]


def tables_of(tables: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """Return what `BlockTableArray.gather` returns for these tables, none of them empty.

    For steps that no scheduler plans.
    """
    array = BlockTableArray()
    slots = [array.take() for _ in tables]
    for slot, blocks in zip(slots, tables, strict=True):
        array.put(slot, 0, blocks)
    return array.gather(slots, max(map(len, tables), default=0))
