"""The block tables of all running requests in one array."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class BlockTableArray:
    """Block ids [slots, blocks] int64: a request's table is a row, which changes only when the request gets blocks.

    So a step gathers its tables in one operation, however long they are. The array grows as needed.
    """

    def __init__(self) -> None:
        self._ids = np.zeros((8, 64), dtype=np.int64)
        self._free = list(range(7, -1, -1))

    def take(self) -> int:
        """A free slot."""
        if not self._free:
            size = len(self._ids)
            self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
            self._free = list(range(2 * size - 1, size - 1, -1))
        return self._free.pop()

    def give_back(self, slot: int) -> None:
        """Free a slot."""
        self._free.append(slot)

    def put(self, slot: int, first: int, blocks: Sequence[int]) -> None:
        """Write the ids of a table's blocks from the `first`-th on."""
        end, width = first + len(blocks), self._ids.shape[1]
        if end > width:
            grown = np.zeros((len(self._ids), max(end, 2 * width)), dtype=np.int64)
            grown[:, :width] = self._ids
            self._ids = grown
        self._ids[slot, first:end] = blocks

    def gather(self, slots: Sequence[int], counts: Sequence[int]) -> NDArray[np.int64]:
        """A copy of the first `counts[i]` ids of each slot, [R, max(counts)]; rows are padded with their first id."""
        lengths = np.array(counts, dtype=np.int64)
        width = int(lengths.max(initial=0))
        tables = self._ids[slots, :width]
        return np.where(np.arange(width) < lengths[:, None], tables, tables[:, :1])


def tables_of(tables: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """What `BlockTableArray.gather` gives for these tables; for a step that no scheduler plans."""
    array = BlockTableArray()
    slots = [array.take() for _ in tables]
    for slot, blocks in zip(slots, tables, strict=True):
        array.put(slot, 0, blocks)
    return array.gather(slots, [len(blocks) for blocks in tables])
