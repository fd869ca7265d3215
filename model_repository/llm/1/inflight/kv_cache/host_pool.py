"""Blocks in host memory: of preempted requests, and of prefixes that the KV cache had no room for."""

from collections import OrderedDict
from collections.abc import Sequence


class HostPool:
    """Preempted requests pin blocks. All others may keep prefixes, which are found by their hashes.

        free ──allocate──▶ pinned ──release, settle──▶ free
         └────keep, settle──▶ kept ──allocate or keep (least recently used first)──▶ pinned or kept

    A step makes the copies that were planned before it. Until `settle`, a block that a copy goes to is not found, and a
    block that a copy reads is not given to anybody else. Every operation takes O(1) per block.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._leaving: list[int] = []
        self._kept: OrderedDict[bytes, int] = OrderedDict()
        self._arriving: dict[bytes, int] = {}
        """Blocks that planned copies of prefixes go to."""
        self._reading: dict[bytes, int] = {}
        """Blocks of prefixes that planned copies read."""

    @property
    def num_used(self) -> int:
        """Blocks that preempted requests pin. After the last request, no step settles what it gave back."""
        return self.num_blocks - len(self._free) - len(self._leaving) - self.num_prefixes

    @property
    def num_prefixes(self) -> int:
        """Blocks that keep prefixes."""
        return len(self._kept) + len(self._arriving) + len(self._reading)

    def allocate(self, count: int) -> list[int] | None:
        """Pin `count` blocks: free ones, then those of prefixes. Return None and do nothing if there are fewer."""
        if count > len(self._free) + len(self._kept):
            return None
        return [self._take() for _ in range(count)]

    def _take(self) -> int:
        return self._free.pop() if self._free else self._kept.popitem(last=False)[1]

    def release(self, blocks: list[int]) -> None:
        """Give pinned blocks back. They are free after the next `settle`."""
        self._leaving += blocks

    def keep(self, name: bytes) -> int | None:
        """Return the block to copy the prefix block with the hash `name` to.

        None: it is there already, or preempted requests pin all blocks.
        """
        if name in self._kept:
            self._kept.move_to_end(name)
            return None
        if name in self._arriving or name in self._reading or not (self._free or self._kept):
            return None
        block = self._arriving[name] = self._take()
        return block

    def count(self, names: Sequence[bytes]) -> int:
        """Return how many blocks the longest kept prefix of the chain `names` has. Any thread may ask for a hint."""
        for index, name in enumerate(names):
            if name not in self._kept and name not in self._reading:
                return index
        return len(names)

    def read(self, names: Sequence[bytes]) -> list[int]:
        """Return the blocks of kept prefixes, in order, to copy from in the next step."""
        blocks = [self._kept[name] if name in self._kept else self._reading[name] for name in names]
        for name in reversed(names):  # The tail is the first to be given up, as in `BlockPool`.
            if name in self._kept:
                self._reading[name] = self._kept.pop(name)
        return blocks

    def settle(self) -> None:
        """Note that all copies planned so far are made."""
        self._free += self._leaving
        self._leaving.clear()
        for copied in (self._arriving, self._reading):
            self._kept.update(copied)
            copied.clear()

    def forget_arriving(self) -> None:
        """Note that the planned copies of prefixes were not made."""
        self._free += self._arriving.values()
        self._arriving.clear()
