"""What a step does to the cache before it computes: copies of blocks, and imported bytes that are written into some."""

from collections.abc import Collection, Iterable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Copies: TypeAlias = tuple[tuple[int, int], ...]
"""Pairs of a block to copy and the block to copy it to."""

Imports: TypeAlias = tuple[tuple[NDArray[np.uint8], tuple[int, ...]], ...]
"""Bytes [N, bytes per block], and the N blocks to write them to."""


class PlannedCopies:
    """Planned from one step to the next, and then taken by the plan of the step that makes them.

    A step first swaps out, then forks, then swaps in, and writes the imported bytes last. So a block can be given to
    another request in the step that copies its content away.
    """

    def __init__(self) -> None:
        self._swapped_out: list[tuple[int, int]] = []
        self._forked: list[tuple[int, int]] = []
        self._swapped_in: list[tuple[int, int]] = []
        self._imported: list[tuple[NDArray[np.uint8], tuple[int, ...]]] = []

    def swap_out(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Plan copies to host memory: (block, host block)."""
        self._swapped_out += pairs

    def fork(self, block: int, copy: int) -> None:
        """Plan to copy a block of the cache to another one."""
        self._forked.append((block, copy))

    def swap_in(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Plan copies from host memory: (host block, block)."""
        self._swapped_in += pairs

    def write(self, data: NDArray[np.uint8], blocks: Iterable[int]) -> None:
        """Plan to write bytes [N, bytes per block] into N blocks."""
        self._imported.append((data, tuple(blocks)))

    def forget_forks(self, blocks: Collection[int]) -> None:
        """Make no copies to blocks that are free again."""
        if self._forked:
            self._forked = [copy for copy in self._forked if copy[1] not in blocks]

    def take_copies(self) -> tuple[Copies, Copies, Copies]:
        """Return the copies planned since the last call for the step that makes them, in the order of making."""
        planned = self._swapped_out, self._forked, self._swapped_in
        out, forked, into = map(tuple, planned)
        for copies in planned:
            copies.clear()
        return out, forked, into

    def take_imported(self) -> Imports:
        """Return what is to be written since the last call, for the step that writes it."""
        planned = tuple(self._imported)
        self._imported.clear()
        return planned
