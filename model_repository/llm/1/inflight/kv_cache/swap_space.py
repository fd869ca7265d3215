"""Blocks in host memory that keep the keys and values of preempted requests."""


class SwapSpace:
    """Hands out host blocks.

    Those that are given back can be had again only after `settle`, as copies out of them may still be planned.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._leaving: list[int] = []

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def allocate(self, count: int) -> list[int] | None:
        """Take `count` blocks; None, and nothing taken, if fewer are free."""
        if count > len(self._free):
            return None
        return [self._free.pop() for _ in range(count)]

    def release(self, blocks: list[int]) -> None:
        """Give blocks back."""
        self._leaving += blocks

    def settle(self) -> None:
        """The copies planned so far are done."""
        self._free += self._leaving
        self._leaving.clear()
