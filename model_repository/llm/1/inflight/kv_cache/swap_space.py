"""Blocks in host memory that keep the keys and values of preempted requests."""


class SwapSpace:
    """Allocates host blocks.

    A released block can be allocated again only after `settle`, because planned copies may still read it.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._leaving: list[int] = []

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def allocate(self, count: int) -> list[int] | None:
        """Take `count` blocks. Return None and take nothing if fewer are free."""
        if count > len(self._free):
            return None
        return [self._free.pop() for _ in range(count)]

    def release(self, blocks: list[int]) -> None:
        """Give blocks back. They are free after the next `settle`."""
        self._leaving += blocks

    def settle(self) -> None:
        """Free the released blocks. Call this when the copies planned so far are done."""
        self._free += self._leaving
        self._leaving.clear()
