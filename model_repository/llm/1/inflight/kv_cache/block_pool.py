"""The blocks of the KV cache: who uses them, which are empty, which still hold a reusable prefix."""

from collections import OrderedDict
from collections.abc import Sequence


class BlockPool:
    """Counts references to blocks and remembers full blocks by hash until their room is needed.

        empty ──allocate──▶ used ──release, no hash──▶ empty
                             ▲ └───release, hashed───▶ cached ──allocate (oldest first)──▶ used
                             └──────share (hit)──────────┘

    `num_used + num_free == num_blocks` always; cached blocks count as free, for any allocation may take them.
    Every operation is O(1) per block.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._references = [0] * num_blocks
        self._empty = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._hash_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        return len(self._empty) + len(self._cached)

    @property
    def num_cached(self) -> int:
        """Free blocks that hold a reusable prefix."""
        return len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks, empty ones first, then the cached ones that were used longest ago.

        Raises:
            ValueError: fewer than `count` blocks are free; nothing is taken.
        """
        if count > self.num_free:
            raise ValueError(f"{count} blocks asked for, {self.num_free} free")
        blocks = [self._empty.pop() if self._empty else self._evict() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        del self._block_of[self._hash_of.pop(block)]
        return block

    def release(self, blocks: Sequence[int]) -> None:
        """Give up one reference to each block of a table.

        The tail goes first, so that it is also evicted first: a prefix is of use without its tail, not the reverse.

        Raises:
            ValueError: a block has no reference left to give up.
        """
        for block in reversed(blocks):
            if self._references[block] < 1:
                raise ValueError(f"block {block} is released but not in use")
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self._hash_of:
                    self._cached[block] = None
                else:
                    self._empty.append(block)

    def find(self, hashes: Sequence[bytes]) -> list[int]:
        """Blocks that hold the longest known prefix of the chain `hashes`, in order; takes no reference."""
        blocks = []
        for name in hashes:
            block = self._block_of.get(name)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_unreferenced(self, blocks: Sequence[int]) -> int:
        """How many of `blocks` sharing would take out of the free ones."""
        return sum(self._references[block] == 0 for block in blocks)

    def share(self, blocks: Sequence[int]) -> None:
        """Take one more reference to each of `blocks`, as `find` named them."""
        for block in blocks:
            if self._references[block] == 0:
                del self._cached[block]
            self._references[block] += 1

    def register(self, block: int, name: bytes) -> None:
        """Let `find` hand out `block` under `name`. Only once its step has committed: till then it holds garbage.

        A name that another block has already stays with that one, so that block tables are append-only.
        """
        if name not in self._block_of and block not in self._hash_of:
            self._block_of[name] = block
            self._hash_of[block] = name
